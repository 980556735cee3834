"""Builds the views from the files of runs. An ended run is read once. For a live run, only changed files are read
again.
"""

from __future__ import annotations

import glob
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, Final

from orchestrator.errors import StoreError, UsageError
from orchestrator.looking.account import Account, account_of
from orchestrator.looking.run import state_or_why_not
from orchestrator.operations import diff, ranking
from orchestrator.operations.watched_logs import WatchedLogs
from orchestrator.protocol.events import Event
from orchestrator.protocol.metric import better_of
from orchestrator.runs.files.file_cache import FileCache
from orchestrator.runs.files.logs import beat_of, beats_of, last_line, result_of
from orchestrator.runs.files.metrics import Series, default_metric, metric_of_job, metric_that_exists, metrics_of
from orchestrator.runs.files.sample_looks import SampleLooks
from orchestrator.runs.files.written_metrics import is_number, last_values
from orchestrator.runs.findings import FindingKind, findings, in_words
from orchestrator.runs.labels import Relabelled, labels_of
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir, find_run, newest_ids
from orchestrator.runs.summary import code_of, gpus_of, hours_of
from orchestrator.runs.sweeps import points_in
from orchestrator.views.curves import Curves, Trend, curve_of, trend_of
from orchestrator.views.facts import Facts, facts_of
from orchestrator.views.heat import HeatMap, span_map
from orchestrator.views.logs import RankLog
from orchestrator.views.pace import Pace, pace_of
from orchestrator.views.run import ENDED_BADLY, RankStatus, RunView, run_view
from orchestrator.views.runs import RunRow, RunsView, row_of, runs_view
from orchestrator.views.step_times import Histogram, StepTimes, histogram_of, step_spans, step_times_of
from orchestrator.views.sweep import SweepView, sweep_view
from orchestrator.views.use import Totals, UseView, totals_of, use_view, uses_of_ranks

FIRST_SECONDS: Final = 0.1  # after this time, `runs` leaves runs that it has not read yet to its next call
LEAST_SLOWER: Final = 1.5  # the colour scale of step times ends at this multiple of the fastest step, or above
OF_PACE: Final = (FindingKind.DATA, FindingKind.SLOW)  # findings that the sentence about the pace contains already
Note = Callable[[RunState, Mapping[str, Any] | None, float, str], str]
"""Returns the most important fact about a run, from its state, rank 0's heartbeat, the time now and its last line."""


class Reader:
    """Reads the runs of a state folder repeatedly. Several threads may use it, and one of them reads at a time."""

    def __init__(
        self, root: Path, note: Note, clock: Callable[[], float] = time.time, *, has_facts: bool = False
    ) -> None:
        self.root, self._note, self._clock, self._has_facts = root, note, clock, has_facts
        self._relabelled = Relabelled(root)
        self._lock = RLock()
        self._ended: dict[str, RunRow] = {}
        self._known: dict[str, FileCache] = {}
        self._series: dict[str, Series] = {}
        self._step_times: dict[str, StepTimes] = {}
        self._samples: dict[str, SampleLooks] = {}
        self.watched = WatchedLogs()

    def find(self, reference: str) -> RunDir:
        """Return the run with this id, unique prefix or name. Raises RunNotFoundError if there is none."""
        return find_run(self.root, reference)

    def folder_of(self, run_id: str) -> RunDir:
        """Return the folder of the run with this full id."""
        return RunDir(self.root / "runs" / run_id)

    def runs(self, words: str = "", *, seconds: float = FIRST_SECONDS) -> RunsView:
        """Return the runs that have all of `words`. At most about `seconds` seconds are spent on runs that were never
        read before. The remaining runs are only counted, and a later call reads them.
        """
        with self._lock:
            return self._runs(words, seconds)

    def _runs(self, words: str, seconds: float) -> RunsView:
        for run_id in self._relabelled.look():
            self._ended.pop(run_id, None)
        ids, rows, spent = newest_ids(self.root), list[RunRow](), 0.0
        for run_id in ids:
            row = self._ended.get(run_id)
            if row is None:
                is_new, begun = run_id not in self._known, time.monotonic()
                if is_new and spent > seconds:
                    continue
                run = self.folder_of(run_id)
                row = self._row(run, self._state(run))
                spent += time.monotonic() - begun if is_new else 0.0
            rows.append(row)
        there = set(ids)
        for kept in (self._ended, self._known, self._series, self._step_times, self._samples):
            for gone in [run_id for run_id in kept if run_id not in there]:
                del kept[gone]
        return runs_view(rows, words, unread=len(ids) - len(rows))

    def state(self, run: RunDir) -> RunState:
        """Return the state of a run."""
        with self._lock:
            return self._state(run)

    def account(self, run: RunDir) -> Account | None:
        """Return the account of a run's end, or None if the run has not ended."""
        with self._lock:
            return account_of(run, self._state(run))

    def row(self, run: RunDir) -> RunRow:
        """Return the row of one run."""
        with self._lock:
            return self._row(run, self._state(run))

    def run(self, run: RunDir, *, all_ranks: bool = True) -> RunView:
        """Return the view of one run.

        Without `all_ranks`, the view has only the ranks that failed or are lost, and only rank 0's heartbeat is read,
        because there may be thousands of ranks.
        """
        with self._lock:
            state = self._state(run)
            if all_ranks:
                beats = beats_of(run, state.attempt)
            else:
                beats = {0: beat} if (beat := beat_of(run, state.attempt)) else {}
            steps = self._step_times.setdefault(run.run_id, StepTimes())
            if not state.is_final and all_ranks:
                steps.look(state.attempt, beats)
            last = last_line(run, state.attempt)
            sampled = self._sampled(run).look() if all_ranks and not state.is_final else ()
            try:
                events = self.events(run)
            except StoreError:  # the run's state contains the error
                events = ()
            row = self._row(run, state, beats.get(0), events or None)
            return run_view(
                state, row, str(run.path), events, self._clock(), beats=beats,
                step_times={} if state.is_final else step_times_of(sampled) | steps.newest,
                uses=uses_of_ranks(sampled), last_line=last,
                result=result_of(run), wanted=tuple(RankStatus) if all_ranks else ENDED_BADLY,
            )  # fmt: skip

    def events(self, run: RunDir) -> tuple[Event, ...]:
        """Return the events of a run. The events of each node are in order."""
        with self._lock:
            return run.events(self._cache(run))

    def hours(self, run: RunDir) -> Mapping[str, float | None]:
        """Return the rank-hours, core-hours and GPU-hours that the run has used until now or until its end, and the
        watt-hours of its GPUs.
        """
        with self._lock:
            state = self._state(run)
            until = state.ended if state.is_final else None
            return hours_of(self.events(run), until or self._clock(), self._sampled(run).look())

    def curves(self, runs: Sequence[RunDir], metric: str, *, smoothing: float = 0.0, most: int = 1000) -> Curves:
        """Return the curves of a metric for several runs. Runs without the metric are left out."""
        with self._lock:
            series = [(run.run_id, self._looked_at(run)) for run in runs]
            found = (
                curve_of(run_id, its.values(metric), its.values("epoch"), smoothing=smoothing, most=most)
                for run_id, its in series
            )
            names, kinds = (
                tuple(sorted({name for _, its in series for name in each(its)}))
                for each in (Series.names, Series.names_of_kinds)
            )
            return Curves(metric, tuple(filter(None, found)), names, kinds)

    def trend(self, run: RunDir) -> Trend | None:
        """Return the course of the job's metric, or of the loss if the run has not written the job's metric."""
        with self._lock:
            series, of_job = self._looked_at(run), metric_of_job({"job": run.record().job_document})
            names = series.names()
            name = of_job.name if of_job is not None and of_job.name in names else default_metric(names)
            return trend_of(name, better_of(name, of_job), series.values(name))

    def step_time_map(self, run: RunDir, *, columns: int, rows: int | None = None) -> HeatMap:
        """Return a heat map of the step times of each rank, for the period that the run's samples cover."""
        with self._lock:
            spans = list(step_spans(self._sampled(run).look()))
            return span_map("step time", "s", spans, columns=columns, rows=rows, least=LEAST_SLOWER)

    def step_times(self, run: RunDir) -> Histogram:
        """Return a histogram of the step times of all ranks."""
        with self._lock:
            return histogram_of(self._sampled(run).look())

    def pace(self, run: RunDir) -> Pace | None:
        """Return which rank is the slowest and why; None if no step was measured yet."""
        with self._lock:
            hosts = {node.node: node.host for node in self._state(run).nodes}
            return pace_of(self._sampled(run).look(), hosts)

    def findings(self, run: RunDir) -> list[str]:
        """Return a sentence for each unusual state in the newest samples of a live run, unless `pace` reports it."""
        with self._lock:
            state = self._state(run)
            if state.is_final:
                return []
            hosts, samples = {node.node: node.host for node in state.nodes}, self._sampled(run).look()
            pace = pace_of(samples, hosts)
            slow = pace.rank if pace is not None and pace.why else -1
            return in_words(
                [each for each in findings(samples) if each.rank != slow or each.kind not in OF_PACE], hosts
            )

    def totals(self, run: RunDir) -> Totals:
        """Return the highest memory, the mean use of GPUs and the median step time of a run."""
        with self._lock:
            return totals_of(self._sampled(run).look())

    def use(self, run: RunDir, measure: str | None = None, *, columns: int, rows: int | None = None) -> UseView:
        """Return the use of a run's nodes, ranks and GPUs, with a heat map of one measure."""
        with self._lock:
            return use_view(self._sampled(run).look(), measure, columns=columns, rows=rows)

    def log(self, run: RunDir, rank: int = 0, attempt: int | None = None) -> RankLog:
        """Return a rank's log of an attempt, or of the newest attempt with a log; an empty log if there is none."""
        found: dict[int, str] = {}
        pattern = f"{glob.escape(str(run.path))}/nodes/*/attempt_{'*' if attempt is None else attempt}/rank_{rank}.log"
        for name in glob.iglob(pattern):
            number = Path(name).parent.name.removeprefix("attempt_")
            if number.isdecimal():
                found[int(number)] = name
        newest = max(found, default=None)
        return RankLog(None if newest is None else Path(found[newest]), newest or 0, rank)

    def sweep(self, sweep: str, metric: str | None = None) -> SweepView:
        """Return a sweep's points ranked by a metric, the best first. Raises UsageError if there is no such sweep.

        The default is the job's metric, or another metric that the points have.
        """
        runs = points_in(self.root, sweep)
        if not runs:
            raise UsageError(f"there is no sweep '{sweep}'", "the table of runs lists all sweeps")
        found, of_job = [metrics_of(run) for run in runs], ranking.metric_of(runs)
        name = metric or metric_that_exists(found, of_job) or (of_job.name if of_job is not None else "")
        better = better_of(name, of_job)
        names = tuple(sorted({name for each in found for name in each}))
        return sweep_view(sweep, name, better, names, ranking.ranked_by(name, better, runs, found), of_job)

    def compare(self, one: RunDir, other: RunDir) -> diff.Comparison:
        """Return the differences between two runs."""
        with self._lock:
            return diff.compare(one, other, (self._state(one), self._state(other)))

    def last_values(self, run: RunDir) -> dict[str, float]:
        """Return the newest value of each metric that a run has written."""
        with self._lock:
            return last_values(run, self._cache(run))

    def _cache(self, run: RunDir) -> FileCache:
        return self._known.setdefault(run.run_id, FileCache())

    def _state(self, run: RunDir) -> RunState:
        return state_or_why_not(run, self._cache(run))

    def _row(
        self, run: RunDir, state: RunState, beat: Mapping[str, Any] | None = None, events: Sequence[Event] | None = None
    ) -> RunRow:
        last = ""
        if not state.is_final:
            beat = beat or beat_of(run, state.attempt)
            last = "" if beat else last_line(run, state.attempt)
        facts = self._facts(run, None if state.is_final else beat, events) if self._has_facts else ()
        row = row_of(state, self._note(state, beat, self._clock(), last), labels_of(run), facts)
        if state.is_final and run.ending() is not None:  # the run's row will not change any more
            self._ended[run.run_id] = row
            self._known.pop(run.run_id, None)
        return row

    def _facts(self, run: RunDir, beat: Mapping[str, Any] | None, events: Sequence[Event] | None) -> Facts:
        try:
            events = run.events(self._cache(run)) if events is None else events
            record, result = run.record(), result_of(run)
        except StoreError:  # the run's state contains the error
            return ()
        told = beat.get("metrics") if beat else None
        of_beat = {name: value for name, value in told.items() if is_number(value)} if isinstance(told, Mapping) else {}
        if beat and is_number(loss := beat.get("loss")):
            of_beat["loss"] = loss
        return facts_of(record, result, last_values(run, self._cache(run)) | of_beat, code_of(events), gpus_of(events))

    def _looked_at(self, run: RunDir) -> Series:
        series = self._series.setdefault(run.run_id, Series(run))
        series.look()
        return series

    def _sampled(self, run: RunDir) -> SampleLooks:
        return self._samples.setdefault(run.run_id, SampleLooks(run))
