"""orch metrics: show the use of a run's CPUs, GPUs and memory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from orchestrator.cli import complete
from orchestrator.cli.delegated import delegated
from orchestrator.cli.group import duration, orch, print_json, say, show, style
from orchestrator.cli.terminal import speaks_utf8
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.protocol.samples import Sample
    from orchestrator.runs.files.samples import NodeSamples

MOST_RANKS = 32  # if a run has more ranks, only nodes and GPUs have lines


@orch.command(epilog="Example: orch metrics last --since 10m")
@click.argument("run", shell_complete=complete.runs)
@click.option("--since", metavar="TIME", help="Only samples of the last TIME, such as 10m.")
@click.option("--node", type=click.IntRange(0), metavar="N", help="Only this node.")
@click.option("--ascii", "plain", is_flag=True, help="Draw in ASCII; the default if the locale is not UTF-8.")
@click.option("--json", "as_json", is_flag=True, help="Print all samples as JSON.")
@delegated
def metrics(run: str, since: str | None, node: int | None, plain: bool, as_json: bool) -> int:
    """Show the use of a run's CPUs, GPUs and memory.

    Each line ends with the newest values. orch plot shows the loss and other metrics of the training.
    """
    from orchestrator.cli.render import sparklines
    from orchestrator.looking.state import state_of
    from orchestrator.runs import findings
    from orchestrator.runs.files.samples import read_samples
    from orchestrator.runs.store import find_run
    from orchestrator.supervisor.background import attended_root

    folder = find_run(attended_root(), run)
    found = list(read_samples(folder, only=node))
    if not found:
        asked = folder.record().job.sampling
        why = "a first sample takes 2 s" if asked else "its job says sampling: false"
        raise UsageError(
            f"run {folder.run_id} has no samples of CPU, GPU and memory "
            f"use{'' if node is None else f' of node {node}'}",
            why,
        )
    limit = None if since is None else max(1, duration("--since", since))
    if limit is not None:
        found = [replace(each, samples=_newest(each, limit)) for each in found]
    hosts = {each.node: each.host for each in state_of(folder).nodes}
    said = findings.findings(found)
    if as_json:
        nodes = [
            {"node": each.node, "host": hosts.get(each.node), "samples": [one.to_json() for one in each.samples]}
            for each in found
        ]
        scores = findings.straggler_scores(found)
        print_json(
            {"run_id": folder.run_id, "nodes": nodes, "findings": [each.to_json() for each in said], "slow": scores}
        )
        return 0

    def length(each: NodeSamples) -> float:
        return each.samples[-1].time - each.samples[0].time + each.samples[0].seconds

    ranks = sum(len(each.last_ranks) for each in found)
    blocks = sparklines.ASCII if plain or not speaks_utf8() else sparklines.BLOCKS
    width = shutil.get_terminal_size().columns
    span = max(1.0, *map(length, found))
    view = sparklines.View(span, width, blocks, ranks=ranks <= MOST_RANKS)
    show(sparklines.metrics_page(found, hosts, view, style))
    if not view.ranks:
        say(f"{ranks} ranks are not shown; --node N shows those of a node")
    if lines := findings.in_words(said, hosts, most=None):
        show("\n" + "\n".join(lines))
    return 0


def _newest(node: NodeSamples, limit: float) -> tuple[Sample, ...]:
    end = node.samples[-1].time
    return tuple(each for each in node.samples if end - each.time < limit)
