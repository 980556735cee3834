"""Selects lines of a log by a pattern, by level and by time.

A log is what a program printed, and orch adds no times to it. A line without a time has the time of the nearest earlier
line with a time. If the beginning of a log has no time at all, only the time of the log's last write is known.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Final

from orchestrator.errors import StoreError
from orchestrator.runs.files.logs import LogFile

_BEGINNING: Final = 1 << 16  # bytes of a log in which the first time is searched
_HEAD: Final = 120  # characters of a line in which its time and level are searched
_DATE: Final = re.compile(
    r"(?<!\d)(\d{4})[-/](\d\d)[-/](\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?\d*(Z|[+-]\d\d:?\d\d)?"
)
_GLOG: Final = re.compile(r"(?:^|[\s\[\]:])([DIWEFC])(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,6})")
_LEVEL: Final = re.compile(r"(?:^|[\s\[|:(<-])(DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)(?=[\s\])>|:,-]|$)")
_LOWER: Final = re.compile(r"(?:^|\[)(debug|info|warn(?:ing)?|error|critical|fatal)(?=[:\]])", re.IGNORECASE | re.ASCII)
_PYTHON_WARNING: Final = re.compile(r":\d+: \w*Warning: ")
_TRACEBACK: Final = "Traceback (most recent call last):"


class Level(IntEnum):
    """The level of a log line, with the names of Python's logging module."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


_WORDS: Final = {
    "DEBUG": Level.DEBUG, "INFO": Level.INFO, "WARN": Level.WARNING, "WARNING": Level.WARNING, "ERROR": Level.ERROR,
    "CRITICAL": Level.CRITICAL, "FATAL": Level.CRITICAL, "D": Level.DEBUG, "I": Level.INFO, "W": Level.WARNING,
    "E": Level.ERROR, "F": Level.CRITICAL, "C": Level.CRITICAL,
}  # fmt: skip


@dataclass
class _Position:
    """The time and level that the next line of a log gets if the line itself has no time or level."""

    time: float | None = None
    level: Level | None = None
    is_traceback: bool = False


@dataclass
class LineFilter:
    """Decides whether a line of a log is wanted. The lines of a log must be passed in order."""

    pattern: re.Pattern[str] | None = None
    level: Level | None = None
    since: float | None = None
    logs_without_times: set[LogFile] = field(default_factory=set)
    _positions: dict[LogFile, _Position] = field(default_factory=dict)

    def takes(self, log: LogFile, line: str) -> bool:
        """Return whether the next line of a log is wanted."""
        position = self._positions.get(log) or self._begin(log)
        if self.since is not None and not self._is_new(position, line):
            return False
        if self.level is not None and not self._reaches_level(position, line):
            return False
        return self.pattern is None or self.pattern.search(line) is not None

    def may_take(self, log: LogFile) -> bool:
        """Return whether a log may contain wanted lines. Return False if the log was last written before `since`."""
        if self.since is None or log in self._positions:
            return True
        try:
            return os.stat(log.path).st_mtime >= self.since
        except OSError:
            return True

    def _begin(self, log: LogFile) -> _Position:
        first = _first_time(log) if self.since is not None else None
        if self.since is not None and first is None:
            self.logs_without_times.add(log)
        return self._positions.setdefault(log, _Position(first))

    def _is_new(self, position: _Position, line: str) -> bool:
        if (said := time_of(line)) is not None:
            position.time = said
        return position.time is None or self.since is None or position.time >= self.since

    def _reaches_level(self, position: _Position, line: str) -> bool:
        """Return whether a line has at least the wanted level.

        An indented line has the level of the line above it. All lines of a traceback have the level ERROR.
        """
        if line.startswith(_TRACEBACK):
            position.level, position.is_traceback = Level.ERROR, True
        elif (said := level_of(line)) is not None:
            position.level, position.is_traceback = said, False
        elif not line.startswith((" ", "\t")):
            level = position.level if position.is_traceback else None
            position.level, position.is_traceback = None, False
            return level is not None and self.level is not None and level >= self.level
        return position.level is not None and self.level is not None and position.level >= self.level


def level_of(line: str) -> Level | None:
    """Return the level at the beginning of a line, or None."""
    head = line[:_HEAD]
    found = _LEVEL.search(head) or _LOWER.search(head) or _GLOG.search(head)
    if found is not None:
        return _WORDS[found[1].upper()]
    return Level.WARNING if _PYTHON_WARNING.search(line[: 4 * _HEAD]) else None


def time_of(line: str, now: float | None = None) -> float | None:
    """Return the time at the beginning of a line, or None. A time without a time zone is in this machine's zone."""
    head = line[:_HEAD]
    if (found := _DATE.search(head)) is not None:
        year, month, day, hour, minute, second = (int(found[number]) for number in range(1, 7))
        zone = (found[8] or "").replace("Z", "+00:00")
        text = (
            f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{(found[7] or '0').ljust(6, '0')}{zone}"
        )
    elif (short := _GLOG.search(head)) is not None:  # in the form of torch's C++ logs, without the year
        moment = datetime.fromtimestamp(now if now is not None else time.time())
        year = moment.year - (f"{short[2]}{short[3]}" > f"{moment:%m%d}")
        text = f"{year:04}-{short[2]}-{short[3]}T{short[4]}:{short[5]}:{short[6]}.{short[7].ljust(6, '0')}"
    else:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _first_time(log: LogFile) -> float | None:
    """Return the first time near the beginning of a log. The beginning may be in the log's rotated part."""
    for suffix in (".1", ""):
        try:
            with log.opened(suffix) as file:
                text = file.read(_BEGINNING).decode("utf-8", "replace")
        except (OSError, StoreError):
            continue
        if (found := next(filter(None, map(time_of, text.splitlines())), None)) is not None:
            return found
    return None
