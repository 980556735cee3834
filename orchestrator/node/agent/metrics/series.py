"""Gives each metric one name over all attempts of a run.

A series has the metrics that one writer of the program, such as a SummaryWriter, writes in all attempts. A folder in
which a later attempt writes continues a series if the folder's name differs only in a time, a host or a number that a
library counts up. A folder with another name continues the series of a folder beside it, if this attempt has not
written to the folder beside it. The series are recorded in the run's file of metrics, from which the agent of a later
start reads them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, NamedTuple

from orchestrator.node.agent.metrics.kept import MOST_METRICS, MOST_OF_A_NAME
from orchestrator.protocol.typed import DamagedError, Fields, read, to_json

KIND = "series"  # the kind of a line about a series in the file of metrics
VARIES = "*"  # stands for the part of a folder's name that differs between attempts
EVENT_FILE = re.compile(r"events\.out\.tfevents\.\d+\.(?P<host>.+)\.(?P<pid>\d+)\.\d+(\..+)?", re.DOTALL)
_DATE = r"(19|20)\d\d[-_.]?(0[1-9]|1[0-2])[-_.]?(0[1-9]|[12]\d|3[01])"
_TIME = re.compile(
    r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d"  # SummaryWriter's default
    rf"|(?<!\d){_DATE}([-_.T ]{{0,2}}\d\d[-_.:h]?\d\d([-_.:m]?\d\d(\.\d+)?)?)?(?!\d)"
    r"|(?<!\d)\d\d[-_:.]\d\d[-_:.]\d\d(?!\d)"
    r"|(?<!\d)1[5-9]\d{8}(\.\d+)?(?!\d)"  # seconds since 1970
)
_COUNTED = re.compile(r"version_\d+|exp\d*")  # Lightning's loggers, yolov5
_OF_WANDB = re.compile(r"(offline-)?run-.+")


def series_folder(path: str) -> str:
    """Return the folder of a file of metrics. All checkpoint folders in one output folder of Trainer count as the
    output folder.
    """
    folder, name = os.path.split(path)
    parent, last = os.path.split(folder)
    return parent if name == "trainer_state.json" and last.startswith("checkpoint-") else folder


def family_of(path: str, below: str) -> str:
    """Return the folder in which a file of metrics lies, with VARIES for each part of a name that differs between
    attempts. Only names below the folder `below` are changed.
    """
    folder, name = series_folder(path), os.path.basename(path)
    event_file = EVENT_FILE.fullmatch(name)
    host = event_file["host"] if event_file is not None else ""
    parts = os.path.relpath(folder, below).split("/") if folder != below else []
    if parts and name.endswith(".wandb") and _OF_WANDB.fullmatch(parts[-1]):
        parts[-1] = VARIES
    return "/".join([below, *(_constant(part, host) for part in parts)])


def _constant(part: str, host: str) -> str:
    if _COUNTED.fullmatch(part):
        return VARIES
    found = _TIME.sub(VARIES, part)
    if not host:
        return found
    # SummaryWriter's default is the time, the host, and the comment, which may follow without a separator.
    found = found.replace(f"{VARIES}_{host}", VARIES)
    return re.sub(rf"(?<![0-9A-Za-z]){re.escape(host)}(?![0-9A-Za-z])", VARIES, found)


class Series(NamedTuple):
    """The metrics of one writer. `family` is the result of `family_of`; `number` counts the series of one family."""

    format: str
    family: str
    number: int

    @property
    def label(self) -> str:
        """Return the prefix for metrics of this series whose names belong to another series."""
        parts = (part.replace(VARIES, "").strip("-_. ") for part in reversed(self.family.split("/")))
        label = next(filter(None, parts), "")
        return label if self.number == 1 else f"{label}-{self.number}"


class _Folder(NamedTuple):
    series: Series
    attempt: int  # the attempt that first wrote to the folder


class SeriesRecord(Fields):
    """A line about a folder of a series. `names` are the names of metrics that the series has taken."""

    format: str
    folder: str
    attempt: int
    family: str
    number: int
    names: tuple[str, ...] = ()


class RunSeries:
    """All series of a run, and the series to which each name of a metric belongs."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.folders: dict[tuple[str, str], _Folder] = {}  # by format and folder
        self.owners: dict[str, Series] = {}  # by the name of a metric
        self.active: set[Series] = set()  # the series to which the present attempt has written
        self.unrecorded: dict[tuple[str, str], list[str]] = {}  # new names of metrics, by format and folder

    def learn(self, line: Mapping[str, Any]) -> None:
        """Take over a series from a line that `records` has returned. A damaged line is ignored."""
        try:
            row = read(SeriesRecord, line.get(KIND))
        except DamagedError:
            return
        series = Series(row.format, row.family, row.number)
        self.folders.setdefault((row.format, row.folder), _Folder(series, row.attempt))
        for name in row.names:
            self.owners.setdefault(name, series)

    def records(self) -> list[dict[str, Any]]:
        """Return lines for the file of metrics about all folders and names that are not recorded yet."""
        found = []
        for (form, folder), names in self.unrecorded.items():
            series, attempt = self.folders[form, folder]
            row = SeriesRecord(form, folder, attempt, series.family, series.number, tuple(names))
            found.append({"kind": KIND, KIND: to_json(row)})
        self.unrecorded = {}
        return found

    def begin(self, attempt: int) -> None:
        """Note that the ranks of another attempt run."""
        if attempt > self.attempt:
            self.attempt, self.active = attempt, set()

    def taken(self, form: str, path: str, below: str, names: Iterable[str], is_now: bool) -> tuple[Series, int]:
        """Return the series of a file with metrics of these names, and the attempt that has written its new points.

        `is_now` is whether the present attempt has written to the file.
        """
        key = (form, series_folder(path))
        attempt = self.attempt if is_now else self.attempt - 1
        if key not in self.folders:
            self.folders[key] = _Folder(self._series_of(form, family_of(path, below), names, attempt), attempt)
            self.unrecorded[key] = []
        found = self.folders[key]
        if is_now:
            self.active.add(found.series)
        return found.series, attempt if is_now else max(0, min(attempt, found.attempt))

    def _series_of(self, form: str, family: str, names: Iterable[str], attempt: int) -> Series:
        """Return the series of a folder that `attempt` has made."""
        known = [each for each in self.folders.values() if each.series.format == form]
        of_now = [each.series for each in known if each.attempt == attempt or each.series in self.active]
        if not any(each.series.family == family for each in known):
            above = os.path.dirname(family)
            beside = {each.series for each in known if os.path.dirname(each.series.family) == above}
            owner = next((owner for name in names if (owner := self.owners.get(name)) in beside), None)
            if owner is not None and beside.isdisjoint(of_now):
                return owner
        used = {each.number for each in of_now if each.family == family}
        return Series(form, family, next(number for number in count(1) if number not in used))

    def renamed(self, path: str, series: Series, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values of a file under their names in the run. A value is left out if another format has it."""
        found = {}
        for name, value in values.items():
            for each in (name, f"{series.label}/{name}"):
                if each not in self.owners and not self._claim(each, path, series):
                    break
                if self.owners[each] == series:
                    found[each] = value
                    break
                if self.owners[each].format != series.format:
                    break
        return found

    def _claim(self, name: str, path: str, series: Series) -> bool:
        if not 0 < len(name) <= MOST_OF_A_NAME or len(self.owners) >= 2 * MOST_METRICS:
            return False
        self.owners[name] = series
        self.unrecorded.setdefault((series.format, series_folder(path)), []).append(name)
        return True
