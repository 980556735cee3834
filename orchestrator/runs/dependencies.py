"""Decides whether a queued run must wait, and why: for the end of another run, or for its turn among the runs of a
sweep.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import StoreError
from orchestrator.outcome.verdict import Outcome
from orchestrator.protocol.events import Queued, of
from orchestrator.protocol.frozen import Value
from orchestrator.runs.files.file_cache import Signature, signature_of
from orchestrator.runs.record import Dependency, RunRecord
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.store import RunDir
from orchestrator.runs.sweeps import runs_named

VALUES_FOR_START: Final = "held.json"  # the environment and secrets with which a queued run will be started
AWAITED_PLACES: Final = "queue.json"  # the places (GPUs or slots) for which a run waits, and the last check
CANCELLED: Final = "it was cancelled before it was started"
REMOVED: Final = "removed"


class Wait(Value):
    """The reason for which a queued run waits for other runs. With `is_unsatisfiable`, the run can never start."""

    reason: str
    is_unsatisfiable: bool = False


def is_queued(run: RunDir) -> bool:
    """Return whether the run waits in orch's own queue to be started."""
    return os.path.exists(f"{run.path}/{VALUES_FOR_START}")


def awaited_places(run: RunDir) -> Mapping[str, Any] | None:
    """Return the queue record of a run that waits for places (GPUs or slots). Return None if it does not wait for
    places, or if the record is damaged.
    """
    try:
        return run.read(AWAITED_PLACES)
    except StoreError:  # the next check writes it again
        return None


def was_queued(run: RunDir) -> bool:
    """Return whether the run was put into orch's queue at some time. The supervisor may have started it since then."""
    return bool(of(run.events(), Queued))


# -- runs that can start


def why_it_waits(root: Path, run: RunDir, record: RunRecord) -> str:
    """Return why a run that has not begun is waiting. The result is empty if orch does not know, for example because
    a scheduler decides when it starts.
    """
    if (wait := recent_wait_of(root, record.after)) is not None:
        return wait.reason
    sweep = sweep_of(run.run_id)
    if not is_queued(run):
        return ""
    if (kept := awaited_places(run)) is not None:
        return str(kept.get("why", ""))
    if sweep is None or record.point is None:
        return "will be started at once"
    return f"waits for its turn: {record.point.at_a_time} of {sweep} at a time"


def recent_wait_of(root: Path, after: Dependency | None) -> Wait | None:
    """Return the result of `wait_of`, cached for one second.

    All points (runs) of a sweep have the same `after`, the run or sweep that must end first. If it is a sweep, each
    point would otherwise read all runs of that sweep, which takes quadratic time.
    """
    return _wait_at(root, after, signature_of(f"{root}/live"), int(time.monotonic())) if after is not None else None


@lru_cache(maxsize=8)
def _wait_at(root: Path, after: Dependency, _live: Signature | None, _second: int) -> Wait | None:
    return wait_of(root, after)


def wait_of(root: Path, after: Dependency | None) -> Wait | None:
    """Return why a run must wait for its `after` (the run or sweep that must end first); None if it need not wait.

    A sweep has succeeded when all of its runs have succeeded. It can't succeed any more once a run of it has failed,
    was cancelled or was removed.
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
    """Return a run's outcome, or `removed` if its folder was deleted; empty if the run has not ended."""
    if (ending := run.ending()) is not None:
        return Outcome.SUCCEEDED if ending.verdict.is_stopped_early else ending.verdict.outcome
    return "" if run.path.exists() else REMOVED
