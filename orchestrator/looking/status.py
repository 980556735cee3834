"""Collects everything that is known of one or many runs, as JSON types, for `orch status --json` and `orch mcp`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.looking.account import account_of
from orchestrator.looking.run import grouped, record_of
from orchestrator.looking.state import state_of
from orchestrator.runs.files.logs import beat_of, last_line, result_of
from orchestrator.runs.files.samples import newest_samples
from orchestrator.runs.findings import findings
from orchestrator.runs.labels import labels_of
from orchestrator.runs.notifications import delivered
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir


def row(run: RunDir, state: RunState) -> dict[str, Any]:
    """Return a run's row for the list of runs."""
    beat = None if state.is_final else beat_of(run, state.attempt)
    last = "" if state.is_final or beat else last_line(run, state.attempt)
    row = {**state.to_json(), "sweep": sweep_of(run.run_id), "progress": beat, "last_line": last}
    return {**row, "labels": labels_of(run).to_json()}


def rows(root: Path, *, everything: bool, limit: int) -> list[dict[str, Any]]:
    """Return the rows of the newest runs and of all live runs, newest first."""
    return [row(*each) for group in grouped(root, everything=everything, limit=limit) for each in group]


def page(run: RunDir) -> dict[str, Any]:
    """Return everything that is known of one run."""
    state = state_of(run)
    account = account_of(run, state)
    return {
        **state.to_json(),
        "account": account.to_json() if account is not None else None,
        "progress": beat_of(run, state.attempt),
        "last_line": last_line(run, state.attempt),
        "result": result_of(run),
        "folder": str(run.path),
        "findings": [each.to_json() for each in findings(newest_samples(run))],
        "record": record_of(run),
        "notifications": delivered(run),
        "trackers": trackers(run),
        "labels": labels_of(run).to_json(),
    }


def trackers(run: RunDir) -> list[dict[str, Any]]:
    """Return how much of the run each tracker that the job uses has received."""
    if not run.record().track:
        return []
    from orchestrator.trackers.progress import tracked

    return tracked(run)
