"""What Slurm said last of a run behind a login node (`slurm.json`), so that who looks at runs asks no machine."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Final

from orchestrator.runs.scheduler_status import SchedulerStatus
from orchestrator.runs.store import RunDir

SEEN: Final = "slurm.json"


def record_status(run: RunDir, status: SchedulerStatus) -> None:
    """Keep what Slurm says, with when it did."""
    before, now = run.read(SEEN) or {}, asdict(status)
    if {**before, "time": None} != {**now, "time": None} or status.phase == "none":
        run.write(SEEN, {**now, "time": time.time()})


def recorded_status(run: RunDir) -> SchedulerStatus | None:
    """Return what was recorded last; None where nothing was, or no job before a submit."""
    seen = run.read(SEEN)
    if seen is None or (seen["phase"] == "none" and _is_submitted_since(run, seen["time"])):
        return None
    return SchedulerStatus(**{name: value for name, value in seen.items() if name != "time"})


def _is_submitted_since(run: RunDir, when: float) -> bool:
    try:
        return (run.path / "handle.json").stat().st_mtime > when
    except OSError:
        return False
