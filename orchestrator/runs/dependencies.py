"""What a queued run waits for: another run's end, or its turn among a sweep's points."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.runs.record import Dependency, RunRecord
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.state import Outcome
from orchestrator.runs.store import RunDir
from orchestrator.runs.sweeps import runs_named

QUEUED: Final = "held.json"
CANCELLED: Final = "it was cancelled before it was started"
REMOVED: Final = "removed"


@dataclass(frozen=True)
class Wait:
    """What a queued run waits for, as far as other runs go; `is_unsatisfiable` when that can't come any more."""

    reason: str
    is_unsatisfiable: bool = False


def is_queued(run: RunDir) -> bool:
    """Tell whether the run waits for somebody to start it."""
    return os.path.exists(f"{run.path}/{QUEUED}")


# -- whose time has come


def why_it_waits(root: Path, run: RunDir, record: RunRecord) -> str:
    """Return what a run that has not begun waits for, as far as orch knows; empty where that is nothing of ours."""
    if (wait := wait_of(root, record.after)) is not None:
        return wait.reason
    sweep = sweep_of(run.run_id)
    if not is_queued(run):
        return ""
    if sweep is None or record.point is None:
        return "will be started at once"
    return f"waits for its turn: {record.point.at_a_time} of {sweep} at a time"


def wait_of(root: Path, after: Dependency | None) -> Wait | None:
    """Return what a run waits for by its record's `after`; None where it waits for no other run, or no longer.

    A sweep has succeeded when all its runs have, and has failed with the first of them.
    """
    if after is None:
        return None
    name, wants = after.run, "succeed" if after.succeeds else "end"
    ends = {before.run_id: _end_of(before) for before in runs_named(root, name)}
    if after.succeeds and (
        bad := next((each for each, end in ends.items() if end not in ("", Outcome.SUCCEEDED)), None)
    ):
        how = {Outcome.CANCELLED: "was cancelled", REMOVED: "was removed"}.get(ends[bad], ends[bad])
        return Wait(f"{bad}, after which it was to start, {how}", is_unsatisfiable=True)
    if all(ends.values()):
        return None
    return Wait(f"waits for {name if name in ends else f'all of {name}'} to {wants}")


def _end_of(run: RunDir) -> str:
    """Return a run's outcome, or `removed`; empty while it has none."""
    if (ending := run.ending()) is not None:
        return ending.verdict.outcome
    return "" if run.path.exists() else REMOVED
