"""Prints texts that several commands have in common, such as plans and logs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.group import say, show
from orchestrator.cli.logs.printer import LogPrinter
from orchestrator.protocol.hostlist import by_words
from orchestrator.runs.record import UNKNOWN

if TYPE_CHECKING:
    from orchestrator.backends.base import CheckResult, NodeProof
    from orchestrator.prepare.prepare import Shipment
    from orchestrator.runs.files.log_filter import LineFilter
    from orchestrator.runs.files.logs import Selection
    from orchestrator.runs.store import RunDir
    from orchestrator.specs.environment import Environment


def plan_json(launch: Any) -> dict[str, Any]:
    """Return the plan as JSON types, with the command and the variables of rank 0, and with the names of the variables
    that differ between ranks.
    """
    from orchestrator.specs.plan import bindings_of, own_variables, ranks_of

    first = next(ranks_of(launch), None)
    nodes = [
        {"node_rank": task.node_rank, "host": task.host, "ranks": [of.rank_offset, of.rank_offset + of.nproc]}
        for task, of in zip(launch.tasks, bindings_of(launch) or [], strict=False)
    ]
    alike = {"argv": list(first.argv), "environment": first.environment, "own": own_variables(launch)} if first else {}
    return {**launch.to_json(), "ranks": {**alike, "nodes": nodes}}


def show_plan(
    launch: Any, as_json: bool, environment: Environment, ships: Shipment, check: CheckResult | None = None
) -> None:
    """Print the plan with masked secrets, the shipped files, and the scheduler's answer to the plan."""
    from orchestrator.cli.render import plans

    if as_json:
        checked = {"check": check._asdict()} if check else {}
        text = json.dumps({**plan_json(launch), "ships": asdict(ships), **checked}, indent=1)
    else:
        parts = [plans.plan_page(launch, commands=True), plans.shipment_page(ships)]
        text = "\n\n".join([*parts, *([plans.check_line(launch.profile.kind, *check)] if check else [])])
    (click.echo if as_json else show)(environment.masked(text))


def say_unknown_secrets(runs: Sequence[RunDir], verb: str, where: str) -> list[str]:
    """Print and return the names of the runs' secrets that can't be masked, because this shell does not have their
    values.
    """
    from orchestrator.runs.leaving import unknown_secrets

    if unknown := unknown_secrets(*runs):
        say(f"{', '.join(unknown)}: not set in this shell, so orch can't mask this secret in the run's output")
        say(f"  export {unknown[0]} and {verb} again, or search the {where} for the secret before you send them")
    return unknown


def print_logs(
    folder: RunDir, selection: Selection, tail: int | None, *, raw: bool, wanted: LineFilter | None = None
) -> None:
    """Print the present contents of the selected logs."""
    from orchestrator.runs.files.logs import Tail

    reader = Tail(folder, selection, wanted)
    if tail is not None:
        reader.skip_to_last(tail)
    LogPrinter(sys.stdout, labelled=selection.takes_several, raw=raw).print_new(reader, ended=True)


def lines_on_proofs(proofs: Sequence[NodeProof]) -> list[str]:
    """Return lines about the processes that are left of a cancelled run on each machine."""
    known = [each for each in proofs if each.host != UNKNOWN or each.survivors or each.is_unreachable]
    if proofs and not known:
        return ["nothing of it had been started"]
    return by_words((each.host, what_is_left(each)) for each in known)


def what_is_left(proof: NodeProof) -> str:
    """Describe the processes that are left of a cancelled run on one node."""
    if proof.is_unreachable and proof.why:
        return f"not known: {proof.why}"
    if proof.is_unreachable:
        return "out of reach; its ranks end where the other nodes reach it, and orch gc looks again when it is back"
    return f"still there: {', '.join(proof.survivors)}" if proof.survivors else "0 processes left"
