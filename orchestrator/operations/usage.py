"""Adds up the hours and energy that runs have used, by user, profile or job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import OrchError
from orchestrator.looking.run import record_of
from orchestrator.looking.state import state_of
from orchestrator.node.system.private import user_name
from orchestrator.runs.store import RunDir, newest_runs

HOUR: Final = 3600.0


@dataclass(frozen=True)
class Used:
    """The hours and energy that one or several runs used. 8 GPUs use 8 GPU-hours in one hour."""

    runs: int = 0
    hours: float = 0.0  # from the start of the ranks to the end
    rank_hours: float = 0.0
    gpu_hours: float = 0.0  # hours of all GPUs that the run held
    gpu_watt_hours: float | None = None  # None if no GPU reports it

    def plus(self, other: Used) -> Used:
        """Return the sum of this use and `other`."""
        watts = [each for each in (self.gpu_watt_hours, other.gpu_watt_hours) if each is not None]
        return Used(
            self.runs + other.runs, self.hours + other.hours, self.rank_hours + other.rank_hours,
            self.gpu_hours + other.gpu_hours, sum(watts) if watts else None,
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return the sums as JSON types."""
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}


def owner_of(run: RunDir) -> str:
    """Return the user who submitted the run: the owner of its folder."""
    number = os.stat(run.path).st_uid
    return user_name(number) or str(number)


KEYS: Final[dict[str, Callable[[RunDir], str]]] = {
    "user": owner_of,
    "profile": lambda run: run.record().profile_name,
    "job": lambda run: run.record().name,
}
"""The functions that return a run's user, profile and job, by which runs can be grouped."""


def usage(root: Path, by: str, since: float | None) -> tuple[dict[str, Used], list[str]]:
    """Return the sums over runs, grouped by user, profile or job, and the ids of unreadable runs.

    `since` is a number of seconds. Only runs that were submitted within the last `since` seconds are counted.
    """
    found: dict[str, Used] = {}
    unreadable = []
    now = time.time()
    for run in newest_runs(root):
        try:
            if since is not None and run.record().created < now - since:
                continue
            key, used = KEYS[by](run), used_by(run, now)
        except (OrchError, OSError):
            unreadable.append(run.run_id)
            continue
        found[key] = found.get(key, Used()).plus(used)
    return dict(sorted(found.items(), key=lambda item: (-item[1].gpu_hours, -item[1].hours, item[0]))), unreadable


def usage_of(runs: Iterable[RunDir]) -> dict[str, Used]:
    """Return a dict from the id of each run to the hours and energy that the run has used."""
    now = time.time()
    return {run.run_id: used_by(run, now) for run in runs}


def used_by(run: RunDir, now: float) -> Used:
    """Return the hours and the energy that one run has used so far."""
    state, hours = state_of(run), record_of(run)["hours"]
    took = ((state.ended or now) - state.started) / HOUR if state.started else 0.0
    return Used(1, max(0.0, took), hours["rank_hours"], hours["gpu_hours"], hours["gpu_watt_hours"])


def total(rows: Iterable[Used]) -> Used:
    """Return the sum of all rows."""
    whole = Used()
    for row in rows:
        whole = whole.plus(row)
    return whole
