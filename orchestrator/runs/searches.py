"""A search and its journal: the values of each trial, its intermediate results, and how it ended.

    ROOT/sweeps/SWEEP/search.json      the space, the sampler, the number of trials
    ROOT/sweeps/SWEEP/search.jsonl     the journal: a line when a trial gets its values, reports a value, or ends

These two files decide everything that a search does next, so a supervisor that was killed loses nothing. An
incomplete line is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import StoreError
from orchestrator.outcome.verdict import Outcome
from orchestrator.protocol.json_text import objects_in
from orchestrator.protocol.metric import Better
from orchestrator.protocol.reading import MOST_LINES, read_part
from orchestrator.protocol.str_enum import member_of
from orchestrator.runs.files.metrics import Series, metrics_of
from orchestrator.runs.files.written_metrics import is_number
from orchestrator.runs.run_id import point_id
from orchestrator.runs.state import drop_invalid_fields
from orchestrator.runs.store import RunDir, append_line, write_durably

SEARCH: Final = "search.json"
JOURNAL: Final = "search.jsonl"
GROWTH: Final = 1.1  # minimal ratio of the steps of consecutive recorded values
Value = float | int | str


class Sampler(StrEnum):
    """The method that chooses the values of the next trial."""

    TPE = "tpe"
    RANDOM = "random"


class Stop(StrEnum):
    """The rule by which trials are stopped early."""

    ASHA = "asha"


class End(StrEnum):
    """The way in which a trial ended."""

    COMPLETE = "complete"
    STOPPED = "stopped"  # the search stopped it early
    FAILED = "failed"  # also if the trial was cancelled, or has no value of the metric


@dataclass(frozen=True)
class Dimension:
    """One dimension of the search space: a key with a range of numbers, or with choices as texts."""

    word: str
    field: str
    low: float | None = None
    high: float | None = None
    is_log: bool = False
    is_whole: bool = False
    choices: tuple[str, ...] = ()

    def rounded(self, value: Value) -> Value:
        """Return the value rounded to readable precision, still within its range."""
        if self.low is None or self.high is None:
            return str(value)
        return int(value) if self.is_whole else min(max(float(f"{float(value):.6g}"), self.low), self.high)

    def text(self, value: Value) -> str:
        """Return the value as text, in the form that `--set` accepts."""
        return value if isinstance(value, str) else repr(value)

    def has(self, value: object) -> bool:
        """Return whether the value is valid for this dimension."""
        if self.low is None or self.high is None:
            return value in self.choices
        kinds = (int,) if self.is_whole else (int, float)
        return type(value) in kinds and self.low <= value <= self.high  # type: ignore[operator]

    def extremes(self) -> tuple[str, ...]:
        """Return the extreme values as texts. They are used to test whether a job accepts values of this range."""
        if self.low is None or self.high is None:
            return self.choices
        return tuple(self.text(int(end) if self.is_whole else float(end)) for end in (self.low, self.high))

    def words(self) -> str:
        """Describe the dimension: `0.0001 to 0.1, log`."""
        if self.low is None:
            return ", ".join(self.choices)
        low, high = self.extremes()
        return f"{low} to {high}{', log' if self.is_log else ''}"

    @staticmethod
    def from_json(data: object) -> Dimension:
        """Parse a recorded dimension. Raises ValueError if it is damaged."""
        kinds: dict[str, tuple[type, ...]] = {"word": (str,), "field": (str,), "is_log": (bool,), "is_whole": (bool,)}
        known = drop_invalid_fields(data, kinds)
        choices = data.get("choices") if isinstance(data, Mapping) else None
        numbers = drop_invalid_fields(data, {"low": (int, float), "high": (int, float)})
        if not {"word", "field"} <= known.keys() or (len(numbers) != 2 and not choices):
            raise ValueError("a parameter of the search space is damaged")
        return Dimension(**known, **numbers, choices=tuple(map(str, choices or ())))


@dataclass(frozen=True)
class Search:
    """A hyperparameter search: the space, the method, and the metric."""

    sampler: Sampler
    trials: int
    metric: str
    better: Better
    space: tuple[Dimension, ...]
    stop: Stop | None = None
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the search in the form of search.json."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Search:
        """Parse the search that `to_json` wrote. Raises ValueError if it is damaged."""
        known = drop_invalid_fields(data, {"trials": (int,), "metric": (str,), "seed": (int,)})
        sampler, better = member_of(Sampler, data.get("sampler")), data.get("better")
        space = data.get("space")
        if len(known) != 3 or sampler is None or better not in tuple(Better) or not isinstance(space, list):
            raise ValueError("a field of the search is missing or damaged")
        dimensions = tuple(map(Dimension.from_json, space))
        return Search(sampler, better=Better(better), space=dimensions, stop=member_of(Stop, data.get("stop")), **known)


def write_search(folder: Path, search: Search) -> None:
    """Record a search in its sweep's folder."""
    write_durably(folder / SEARCH, json.dumps(search.to_json(), indent=1).encode())


def read_search(folder: Path) -> Search:
    """Return the search in a sweep's folder. Raises StoreError if it can't be read."""
    kept = RunDir(folder).read(SEARCH)
    try:
        return Search.from_json(kept or {})
    except ValueError as error:
        raise StoreError(f"{folder / SEARCH} can't be used: {error}", "submit the search again") from error


# -- the journal


@dataclass(frozen=True)
class Asked:
    """A line of the journal: a trial got its values."""

    trial: int
    values: Mapping[str, Value]


@dataclass(frozen=True)
class Seen:
    """A line of the journal: a trial reported a value of the metric at a step."""

    trial: int
    step: int
    value: float


@dataclass(frozen=True)
class Told:
    """A line of the journal: a trial has ended. A complete trial has a value."""

    trial: int
    end: End
    value: float | None = None


Entry = Asked | Seen | Told


def line_of(entry: Entry) -> str:
    """Return an entry as a line of the journal."""
    return json.dumps({"kind": type(entry).__name__.lower(), **asdict(entry)})


def entry_of(search: Search, data: Mapping[str, Any]) -> Entry | None:
    """Parse an entry of the journal. Return None if it is damaged or does not fit this search."""
    kind, trial, value = data.get("kind"), data.get("trial"), data.get("value")
    if type(trial) is not int or not 0 <= trial < search.trials:
        return None
    if kind == "asked":
        values = data.get("values")
        is_point = isinstance(values, Mapping) and all(each.has(values.get(each.word)) for each in search.space)
        return Asked(trial, {each.word: values[each.word] for each in search.space}) if is_point and values else None
    number = float(value) if is_number(value) else None
    if kind == "seen" and number is not None and type(step := data.get("step")) is int and step >= 0:
        return Seen(trial, step, number)
    end = member_of(End, data.get("end")) if kind == "told" else None
    if end is None or (end is End.COMPLETE and number is None):
        return None
    return Told(trial, end, number)


def append(folder: Path, entry: Entry) -> None:
    """Append an entry to the journal."""
    append_line(folder / JOURNAL, line_of(entry))


def entries_from(folder: Path, search: Search, offset: int) -> tuple[list[Entry], int]:
    """Return (entries of a sweep's journal after an offset, offset of the journal's next entry)."""
    try:
        data = read_part(folder / JOURNAL, offset, MOST_LINES)
    except FileNotFoundError:
        return [], offset
    except OSError as error:
        raise StoreError(f"{folder / JOURNAL} can't be read: {error.strerror}") from error
    whole = data[: data.rfind(b"\n") + 1]
    found = (entry_of(search, row) for row in objects_in(whole.splitlines()))
    return [entry for entry in found if entry is not None], offset + len(whole)


def journal(folder: Path, search: Search) -> list[Entry]:
    """Return the entries of a sweep's whole journal."""
    return entries_from(folder, search, 0)[0]


@dataclass(frozen=True)
class Trial:
    """A trial, as the journal's entries describe it. A trial without `end` is running."""

    number: int
    values: Mapping[str, Value]
    seen: Mapping[int, float] = field(default_factory=dict)
    end: End | None = None
    value: float | None = None


def trials_of(entries: Iterable[Entry]) -> list[Trial]:
    """Return the trials in the order of their starts. If an entry is repeated, its first occurrence counts."""
    found: dict[int, Trial] = {}
    for entry in entries:
        trial = found.get(entry.trial)
        if isinstance(entry, Asked):
            found.setdefault(entry.trial, Trial(entry.trial, entry.values))
        elif trial is None or trial.end is not None:
            continue
        elif isinstance(entry, Seen):
            found[entry.trial] = replace(trial, seen={entry.step: entry.value, **trial.seen})
        else:
            found[entry.trial] = replace(trial, end=entry.end, value=entry.value)
    return list(found.values())


def search_in(root: Path, sweep: str) -> tuple[Search, list[Trial]] | None:
    """Return a sweep's search and its trials so far. Return None if the sweep has no search or its files are
    damaged.
    """
    folder = root / "sweeps" / sweep
    try:
        search = read_search(folder) if (folder / SEARCH).exists() else None
        if search is None:
            return None
        entries = journal(folder, search)
        trials = trials_of([*entries, *news_of(root, sweep, search, trials_of(entries))])
        return search, [*trials, *_never_started(root, sweep, search, trials)]
    except StoreError:
        return None


def _never_started(root: Path, sweep: str, search: Search, trials: Iterable[Trial]) -> Iterator[Trial]:
    """Yield the trials that ended before they got values, because they were cancelled while waiting or could not be
    started.
    """
    for number in sorted(set(range(search.trials)) - {trial.number for trial in trials}):
        run = RunDir(root / "runs" / point_id(sweep, number))
        if run.ending() is not None or not run.path.exists():
            yield Trial(number, {}, end=End.FAILED)


# -- entries that the journal lacks


def news_of(root: Path, sweep: str, search: Search, trials: Iterable[Trial]) -> list[Entry]:
    """Return the entries (values and ends) that the journal lacks for those trials whose runs have ended or were
    removed.
    """
    found: list[Entry] = []
    for trial in trials:
        if trial.end is None:
            found += _end_of(RunDir(root / "runs" / point_id(sweep, trial.number)), search, trial)
    return found


def _end_of(run: RunDir, search: Search, trial: Trial) -> list[Entry]:
    ending, number = run.ending(), trial.number
    if ending is None:
        return [] if run.path.exists() else [Told(number, End.FAILED)]  # the run was removed
    said = new_values(Series(run), search, number, max(trial.seen, default=-1))
    if ending.verdict.is_stopped_early:
        return [*said, Told(number, End.STOPPED)]
    value = metrics_of(run).get(search.metric) if ending.verdict.outcome is Outcome.SUCCEEDED else None
    return [*said, Told(number, End.FAILED if value is None else End.COMPLETE, value)]


def new_values(series: Series, search: Search, number: int, after: int) -> list[Seen]:
    """Return a trial's metric values after the step `after`. Values are skipped so that each step is at least 10 %
    greater than the previous step.

    The last value alone does not suffice, because the stop rule compares trials at equal steps.
    """
    series.look()
    found: list[Seen] = []
    for each in series.values(search.metric):
        if each.step >= max(after + 1, after * GROWTH):
            after = int(each.step)
            found.append(Seen(number, after, each.value))
    return found
