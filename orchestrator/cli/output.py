"""Text that several commands print."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.follow import Printer
from orchestrator.cli.group import show

if TYPE_CHECKING:
    from orchestrator.backends.base import CheckResult, NodeProof
    from orchestrator.prepare.prepare import Shipment
    from orchestrator.runs.logs import Selection
    from orchestrator.runs.store import RunDir
    from orchestrator.specs.environment import Environment


def plan_json(launch: Any) -> dict[str, Any]:
    """Return the plan and its ranks as JSON types."""
    from orchestrator.specs.plan import ranks_of

    return {**launch.to_json(), "ranks": [{**row.__dict__, "argv": list(row.argv)} for row in ranks_of(launch)]}


def show_plan(
    launch: Any, as_json: bool, environment: Environment, ships: Shipment, check: CheckResult | None = None
) -> None:
    """Print the plan, with secrets masked, what is shipped, and what Slurm said to it."""
    from orchestrator.cli.render import plans

    if as_json:
        checked = {"check": check._asdict()} if check else {}
        text = json.dumps({**plan_json(launch), "ships": asdict(ships), **checked}, indent=1)
    else:
        parts = [plans.plan_page(launch, commands=True), plans.shipment_page(ships)]
        text = "\n\n".join([*parts, *([plans.check_line(*check)] if check else [])])
    (click.echo if as_json else show)(environment.masked(text))


def print_logs(folder: RunDir, selection: Selection, tail: int | None, *, raw: bool) -> None:
    """Print the chosen logs as they are now."""
    from orchestrator.runs.logs import Tail

    reader = Tail(folder, selection)
    if tail is not None:
        reader.skip_to_last(tail)
    printer = Printer(selection.takes_several, raw=raw)
    for log, line in reader.read(ended=True):
        printer.line(log, line, sys.stdout)


def what_is_left(proof: NodeProof) -> str:
    """Return what a cancel has left of a run on one node, in words."""
    if proof.is_unreachable:
        return "out of reach; its ranks end without the gang, and orch gc looks again when it is back"
    return f"still there: {', '.join(proof.survivors)}" if proof.survivors else "0 processes left"
