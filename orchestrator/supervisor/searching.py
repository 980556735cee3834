"""Chooses the values of a search's trials when they start, records the trials' ends, and stops bad trials early.

Trials are queued like the points of a sweep. Several processes append to the search's journal, and `study` decides from
the journal alone. Each step may be repeated.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends import backend_for, kind_of
from orchestrator.errors import OrchError, StoreError
from orchestrator.protocol import quantities
from orchestrator.protocol.events import Cancel
from orchestrator.protocol.files import locked
from orchestrator.runs.dependencies import VALUES_FOR_START
from orchestrator.runs.files.metrics import Series
from orchestrator.runs.record import RunRecord
from orchestrator.runs.searches import (
    SEARCH,
    Asked,
    Search,
    Seen,
    Trial,
    append,
    entries_from,
    journal,
    new_values,
    news_of,
    read_search,
    trials_of,
)
from orchestrator.runs.store import RunDir, check_own

if TYPE_CHECKING:  # `orch status` must stay fast
    from orchestrator.supervisor.study import Halving


def folder_of(root: Path, sweep: str) -> Path:
    """Return the folder of a sweep."""
    return root / "sweeps" / sweep


# -- values


def give_values(root: Path, run: RunDir) -> None:
    """Choose the values of a trial that is being started, and write them to its record. Existing values are kept.

    The caller holds the lock of the run's start and has the environment of the run's submission. The values are written
    to the journal before the record, so that a start after an interruption gets the same values again.
    """
    point = run.record().point
    if point is None or not point.is_trial or point.values:
        return
    from orchestrator.supervisor import study

    folder = folder_of(root, point.sweep)
    try:
        with locked(folder / SEARCH, create=False):
            search = read_search(folder)
            trials = _with_ends(root, point.sweep, search)
            values = next((trial.values for trial in trials if trial.number == point.index), None)
            if values is None:
                values = study.ask(search, trials, point.index)
                append(folder, Asked(point.index, values))
    except OSError as error:
        raise StoreError(f"{folder / SEARCH} can't be used: {error.strerror}", "submit the search again") from error
    _record(root, run, [each.text(values[each.word]) for each in search.space], search)


def _record(root: Path, run: RunDir, values: list[str], search: Search) -> None:
    """Make the trial's plan with the chosen values. Write the plan first and the record second, so a record with
    values implies a plan with values.
    """
    from orchestrator.prepare.prepare import Request, plan_for, prepare
    from orchestrator.prepare.sweeps.search import point_of

    record, queued = run.record(), run.read(VALUES_FOR_START) or {}
    assert record.point is not None
    point = point_of(search, record.point.index, values)
    secrets = tuple(f"{name}={value}" for name, value in queued.get("secrets", {}).items())  # in the form of --env
    asked = Request("", "", sets=point.sets, env=secrets, args=point.args, waits=record.waits, again=run.run_id)
    launch = plan_for(root, prepare(root, asked), run.run_id)
    launch = backend_for(kind_of(launch.profile)).advice.completed(launch)
    kept = run.read("run.json") or {}
    place = {**record.point.to_json(), "values": dict(point.values)}
    run.write("plan.json", launch.to_json())
    run.write("run.json", {**kept, "job": launch.job.to_json(), "world_size": launch.world_size, "sweep": place})


# -- ends


def record_ends(root: Path, sweep: str) -> None:
    """Append an end record to a search's journal for each trial that has ended since the last call."""
    folder = folder_of(root, sweep)
    try:
        with locked(folder / SEARCH, create=False):
            _with_ends(root, sweep, read_search(folder))
    except FileNotFoundError:  # the search was removed meanwhile
        return


def _with_ends(root: Path, sweep: str, search: Search) -> list[Trial]:
    """Append end records to the journal for ended trials that lack one. Return all trials. The caller holds the
    search's lock.
    """
    folder = folder_of(root, sweep)
    entries = journal(folder, search)
    news = news_of(root, sweep, search, trials_of(entries))
    for entry in news:
        append(folder, entry)
    return trials_of([*entries, *news])


# -- early stopping


class SearchStopper:
    """Stops bad trials early by the stop rules of their searches. One object serves all searches."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._rules: dict[str, _Rule | None] = {}  # by sweep; None if the search has no rule or can't be read
        self._thread: threading.Thread | None = None

    def poll(self, going: Iterable[tuple[RunDir, RunRecord]]) -> None:
        """Apply the stop rules to the live runs that are trials. This runs in a thread, because optuna is slow."""
        trials: dict[str, list[tuple[RunDir, int]]] = {}
        for run, record in going:
            if record.point is not None and record.point.is_trial:
                trials.setdefault(record.point.sweep, []).append((run, record.point.index))
        if trials and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._look, args=(trials,), daemon=True)
            self._thread.start()

    def _look(self, trials: Mapping[str, list[tuple[RunDir, int]]]) -> None:
        for sweep in self._rules.keys() - trials.keys():
            del self._rules[sweep]
        for sweep, runs in trials.items():
            try:
                if sweep not in self._rules:
                    self._rules[sweep] = _rule_of(folder_of(self._root, sweep))
                if (rule := self._rules[sweep]) is not None:
                    check_own(self._root)
                    rule.look(runs)
            except OrchError as error:
                print(f"{sweep}: its trials are not stopped early: {error}", file=sys.stderr, flush=True)
                self._rules[sweep] = None


def _rule_of(folder: Path) -> _Rule | None:
    search = read_search(folder)
    return _Rule(folder, search) if search.stop is not None else None


class _Rule:
    """The stop rule of one search, and the offset up to which its journal was read."""

    def __init__(self, folder: Path, search: Search) -> None:
        from orchestrator.supervisor.study import Halving

        self._folder, self._search = folder, search
        self._halving: Halving = Halving(search)
        self._offset = 0
        self._series: dict[int, Series] = {}

    def look(self, runs: Iterable[tuple[RunDir, int]]) -> None:
        """Append the trials' new metric values to the journal, and stop the trials that the rule selects."""
        self._catch_up()
        going = [(run, number) for run, number in runs if not run.is_cancelled]
        for run, number in going:
            last = self._halving.last.get(number, -1)
            for seen in new_values(self._series.setdefault(number, Series(run)), self._search, number, last):
                append(self._folder, seen)
        self._catch_up()
        for run, number in going:
            if (reason := self._halving.stopped.get(number)) is not None:
                stop(run, self._search, reason)

    def _catch_up(self) -> None:
        entries, self._offset = entries_from(self._folder, self._search, self._offset)
        for entry in entries:
            self._halving.take(entry)


def stop(run: RunDir, search: Search, seen: Seen) -> None:
    """Record a cancel of a trial, with the search as its reason. The trial saves a checkpoint before it ends.

    The supervisor's thread for this run then sends the cancel to the agents.
    """
    value = f"{search.metric} {quantities.number(seen.value)}"
    reason = f"stopped by its search at step {seen.step}: with {value} it was not among the best"
    run.append_event(Cancel(reason=reason))  # appended again if the supervisor is killed before the next line
    run.record_cancel(now=False)
