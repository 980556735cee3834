"""Tells trackers of runs: a thread for each of a run's trackers, so that a slow one delays no verdict and no other."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from orchestrator.errors import OrchError, StoreError
from orchestrator.runs.dependencies import is_queued
from orchestrator.runs.record import RunRecord
from orchestrator.runs.store import RunDir
from orchestrator.trackers.feed import feed, has_news
from orchestrator.trackers.ledger import progress_of, trackers_of, unwatch, watched

PATIENCE: Final = 600.0  # for a tracker out of reach, after the end of a run; the next supervisor tries again
MOST_DELAY: Final = 10.0  # between two tries
LEAST_DELAY: Final = 1.0


@dataclass
class _Telling:
    """One tracker of one run."""

    thread: threading.Thread | None = None
    next_try: float = 0.0  # of the monotonic clock, as are the others
    delay: float = LEAST_DELAY
    last_success: float = field(default_factory=time.monotonic)
    is_failing: bool = False
    is_given_up: bool = False

    @property
    def is_at_work(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


class TrackerFeeder:
    """Looks after the trackers of all runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records: dict[str, RunRecord] = {}
        self.tellings: dict[tuple[str, str], _Telling] = {}
        self.unreadable: set[str] = set()  # was said of them

    def has_work(self) -> bool:
        """Tell whether a run has ended of which a tracker has not been told everything, and may be yet."""
        ended = [run for run in watched(self.root) if run.run_id not in self.unreadable and _has_ended(run)]
        return any(map(self._is_unfinished, ended))

    def _is_unfinished(self, run: RunDir) -> bool:
        """Tell whether a tracker may still be told, or all were and only what was kept for that is to be removed."""
        left = [name for name in self._names(run) if not progress_of(run, name).is_done]
        return not left or any(not self._telling(run, name).is_given_up for name in left)

    def poll(self) -> None:
        """Begin to tell whatever is new."""
        for run in watched(self.root):
            try:
                self._tell(run)
            except (OrchError, OSError) as error:
                self._forget_if_gone(run)
                if run.run_id not in self.unreadable:
                    print(f"{run.run_id}: its trackers are not looked after: {error}", file=sys.stderr, flush=True)
                self.unreadable.add(run.run_id)

    def _tell(self, run: RunDir) -> None:
        if is_queued(run):  # a trial of a search has no parameters yet
            return
        now, has_ended, names = time.monotonic(), _has_ended(run), self._names(run)
        told = [(name, progress_of(run, name), self._telling(run, name)) for name in names]
        is_told = all(progress.is_done and not telling.is_at_work for _, progress, telling in told)
        if has_ended and (is_told or run.ending() is None):  # of a verdict that was damaged there is nothing to be told
            unwatch(self.root, run)
            return
        for name, progress, telling in told:
            if not has_ended or not (telling.is_failing or telling.is_at_work):
                telling.last_success = now
            elif now - telling.last_success > PATIENCE:
                telling.is_given_up = True
            is_due = not telling.is_at_work and not telling.is_given_up and now >= telling.next_try
            if is_due and has_news(run, progress, has_ended=has_ended):
                telling.thread = threading.Thread(target=self._feed, args=(run, name, telling), daemon=True)
                telling.thread.start()

    def _feed(self, run: RunDir, name: str, telling: _Telling) -> None:
        was_failing = telling.is_failing
        try:
            telling.is_failing = bool(feed(run, name).problem)
        except (OrchError, OSError) as error:  # the run has been removed meanwhile, or a disk is full
            telling.is_failing = True
            self._forget_if_gone(run)
            if not was_failing:
                print(f"{run.run_id}: {name} is not told: {error}", file=sys.stderr, flush=True)
        telling.delay = min(MOST_DELAY, 2 * telling.delay) if telling.is_failing else LEAST_DELAY
        telling.next_try = time.monotonic() + telling.delay

    def _names(self, run: RunDir) -> tuple[str, ...]:
        """Return the trackers of a run; none where its record can't be read."""
        if run.run_id not in self.records:
            try:
                self.records[run.run_id] = run.record()
            except StoreError:
                return ()
        return trackers_of(self.records[run.run_id].job)

    def _forget_if_gone(self, run: RunDir) -> None:
        if not run.path.exists():
            unwatch(self.root, run)

    def _telling(self, run: RunDir, name: str) -> _Telling:
        return self.tellings.setdefault((run.run_id, name), _Telling())


def _has_ended(run: RunDir) -> bool:
    return (run.path / "verdict.json").exists()
