"""Renders all users' runs on shared hosts as a table."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.cli.render.tables import table
from orchestrator.protocol.hostlist import in_words
from orchestrator.protocol.quantities import duration
from orchestrator.runs.shared_hosts import SharedRun


def shared_runs_page(runs: Iterable[SharedRun], now: float) -> str:
    """Return a table with a line for each run: its place in the queue, the GPUs or slots that it holds or needs, and
    for how long it has held or awaited them.
    """
    rows = []
    for each in runs:
        state = str(each.to_json()["state"])
        time = duration(now - each.since) if each.since else "-"
        rows.append([str(each.position or "-"), each.user, each.run or "?", state, _places(each), time])
    if not rows:
        return "nobody's runs hold GPUs or slots there, and none waits"
    return table(["QUEUE", "USER", "RUN", "STATE", "PLACES", "FOR"], rows)


def _places(each: SharedRun) -> str:
    """Return the GPUs or slots of a run on each host, such as `2 on n1, n2`."""
    by_count: dict[int, list[str]] = {}
    for host, count in each.hosts.items():
        by_count.setdefault(count, []).append(host)
    return "; ".join(f"{count} on {in_words(hosts)}" for count, hosts in by_count.items())
