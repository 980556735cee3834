"""What a search asks for, and its journal: which values each trial was given, what it has said, how it ended.

    ROOT/sweeps/SWEEP/search.json      the space, the sampler, how many trials
    ROOT/sweeps/SWEEP/search.jsonl     the journal: a line when a trial gets its values, says one, or is over

All that a search does next follows from these two files, whoever reads them: a supervisor that was killed has forgotten
nothing. A line that was cut off did not happen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import StoreError
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.metric import Better
from orchestrator.protocol.reading import MOST_LINES, read_part
from orchestrator.runs.files.metrics import Series, metrics_of
from orchestrator.runs.files.written_metrics import is_number
from orchestrator.runs.run_id import point_id
from orchestrator.runs.state import Outcome, drop_invalid_fields, member_of
from orchestrator.runs.store import RunDir, append_line, write_durably

SEARCH: Final = "search.json"
JOURNAL: Final = "search.jsonl"
GROWTH: Final = 1.1  # of the step, between two values that the journal takes: rungs are a factor of 4 apart
Value = float | int | str


class Sampler(StrEnum):
    """Says how the values of the next trial are chosen."""

    TPE = "tpe"
    RANDOM = "random"


class Stop(StrEnum):
    """Says by which rule trials are stopped early."""

    ASHA = "asha"


class End(StrEnum):
    """Says how a trial ended."""

    COMPLETE = "complete"
    STOPPED = "stopped"  # by the search
    FAILED = "failed"  # or was cancelled, or has left no value of the metric


@dataclass(frozen=True)
class Dimension:
    """One key of the space: a range of numbers, or choices as texts."""

    word: str
    field: str
    low: float | None = None
    high: float | None = None
    is_log: bool = False
    is_whole: bool = False
    choices: tuple[str, ...] = ()

    def rounded(self, value: Value) -> Value:
        """Return the value with as many digits as people read, still within its range."""
        if self.low is None or self.high is None:
            return str(value)
        return int(value) if self.is_whole else min(max(float(f"{float(value):.6g}"), self.low), self.high)

    def text(self, value: Value) -> str:
        """Return the value as `--set` takes it."""
        return value if isinstance(value, str) else repr(value)

    def has(self, value: object) -> bool:
        """Tell whether this can be a value of the dimension."""
        if self.low is None or self.high is None:
            return value in self.choices
        kinds = (int,) if self.is_whole else (int, float)
        return type(value) in kinds and self.low <= value <= self.high  # type: ignore[operator]

    def extremes(self) -> tuple[str, ...]:
        """Return the values, as texts, that show whether a job takes them all."""
        if self.low is None or self.high is None:
            return self.choices
        return tuple(self.text(int(end) if self.is_whole else float(end)) for end in (self.low, self.high))

    def words(self) -> str:
        """Return `0.0001 to 0.1, log`."""
        if self.low is None:
            return ", ".join(self.choices)
        low, high = self.extremes()
        return f"{low} to {high}{', log' if self.is_log else ''}"

    @staticmethod
    def from_json(data: object) -> Dimension:
        """Return what was recorded; ValueError for what can't be a dimension."""
        kinds: dict[str, tuple[type, ...]] = {"word": (str,), "field": (str,), "is_log": (bool,), "is_whole": (bool,)}
        known = drop_invalid_fields(data, kinds)
        choices = data.get("choices") if isinstance(data, Mapping) else None
        numbers = drop_invalid_fields(data, {"low": (int, float), "high": (int, float)})
        if not {"word", "field"} <= known.keys() or (len(numbers) != 2 and not choices):
            raise ValueError("a dimension of the space is damaged")
        return Dimension(**known, **numbers, choices=tuple(map(str, choices or ())))


@dataclass(frozen=True)
class Search:
    """What is searched: the space, how, and by which metric."""

    sampler: Sampler
    trials: int
    metric: str
    better: Better
    space: tuple[Dimension, ...]
    stop: Stop | None = None
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the search as search.json holds it."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Search:
        """Return what `to_json` gave; ValueError where it was damaged."""
        known = drop_invalid_fields(data, {"trials": (int,), "metric": (str,), "seed": (int,)})
        sampler, better = member_of(Sampler, data.get("sampler")), data.get("better")
        space = data.get("space")
        if len(known) != 3 or sampler is None or better not in tuple(Better) or not isinstance(space, list):
            raise ValueError("a field is lost")
        dimensions = tuple(map(Dimension.from_json, space))
        return Search(sampler, better=Better(better), space=dimensions, stop=member_of(Stop, data.get("stop")), **known)


def write_search(folder: Path, search: Search) -> None:
    """Record a search in its sweep's folder."""
    write_durably(folder / SEARCH, json.dumps(search.to_json(), indent=1).encode())


def read_search(folder: Path) -> Search:
    """Return the search of a sweep's folder; StoreError where it can't be read."""
    kept = RunDir(folder).read(SEARCH)
    try:
        return Search.from_json(kept or {})
    except ValueError as error:
        raise StoreError(f"{folder / SEARCH} can't be used: {error}", "submit the search again") from error


# -- the journal


@dataclass(frozen=True)
class Asked:
    """A trial was given its values."""

    trial: int
    values: Mapping[str, Value]


@dataclass(frozen=True)
class Seen:
    """A trial has said a value of the metric at a step."""

    trial: int
    step: int
    value: float


@dataclass(frozen=True)
class Told:
    """A trial is over; a complete one has left a value."""

    trial: int
    end: End
    value: float | None = None


Entry = Asked | Seen | Told


def line_of(entry: Entry) -> str:
    """Return an entry as a line of the journal."""
    return json.dumps({"kind": type(entry).__name__.lower(), **asdict(entry)})


def entry_of(search: Search, data: Mapping[str, Any]) -> Entry | None:
    """Return the entry of a line's object; None for what was damaged, or can't be of this search."""
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
    """Return the entries of a sweep's journal from an offset on, in order, and the offset behind them."""
    try:
        data = read_part(folder / JOURNAL, offset, MOST_LINES)
    except FileNotFoundError:
        return [], offset
    except OSError as error:
        raise StoreError(f"{folder / JOURNAL} can't be read: {error.strerror}") from error
    whole = data[: data.rfind(b"\n") + 1]
    found = (_entry_in(search, line) for line in whole.splitlines())
    return [entry for entry in found if entry is not None], offset + len(whole)


def _entry_in(search: Search, line: bytes) -> Entry | None:
    try:
        found = parse_json(line)
    except ValueError:
        return None
    return entry_of(search, found) if isinstance(found, dict) else None


def journal(folder: Path, search: Search) -> list[Entry]:
    """Return the entries of a sweep's whole journal."""
    return entries_from(folder, search, 0)[0]


@dataclass(frozen=True)
class Trial:
    """A trial as the journal tells it; one without an end is going on."""

    number: int
    values: Mapping[str, Value]
    seen: Mapping[int, float] = field(default_factory=dict)
    end: End | None = None
    value: float | None = None


def trials_of(entries: Iterable[Entry]) -> list[Trial]:
    """Return the trials in the order in which they were asked for; of what is said twice, the first holds."""
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
    """Return the search that a sweep is, with its trials as they are now; None for other sweeps, or a damaged one."""
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
    """Yield the trials that have ended without values: they were cancelled while they waited, or could not start."""
    for number in sorted(set(range(search.trials)) - {trial.number for trial in trials}):
        run = RunDir(root / "runs" / point_id(sweep, number))
        if run.ending() is not None or not run.path.exists():
            yield Trial(number, {}, end=End.FAILED)


# -- what the journal has not been told yet


def news_of(root: Path, sweep: str, search: Search, trials: Iterable[Trial]) -> list[Entry]:
    """Return what the journal is to be told of those trials that have ended since."""
    found: list[Entry] = []
    for trial in trials:
        if trial.end is None:
            found += _end_of(RunDir(root / "runs" / point_id(sweep, trial.number)), search, trial)
    return found


def _end_of(run: RunDir, search: Search, trial: Trial) -> list[Entry]:
    ending, number = run.ending(), trial.number
    if ending is None:
        return [] if run.path.exists() else [Told(number, End.FAILED)]  # one that was removed
    said = new_values(Series(run), search, number, max(trial.seen, default=-1))
    if ending.verdict.is_stopped_early:
        return [*said, Told(number, End.STOPPED)]
    value = metrics_of(run).get(search.metric) if ending.verdict.outcome is Outcome.SUCCEEDED else None
    return [*said, Told(number, End.FAILED if value is None else End.COMPLETE, value)]


def new_values(series: Series, search: Search, number: int, after: int) -> list[Seen]:
    """Return what a trial has said of the metric since a step; of many, each a tenth further than the one before.

    A rung compares what trials said at the same step, so it is not enough to know what they have said last.
    """
    series.look()
    found: list[Seen] = []
    for each in series.values(search.metric):
        if each.step >= max(after + 1, after * GROWTH):
            after = int(each.step)
            found.append(Seen(number, after, each.value))
    return found
