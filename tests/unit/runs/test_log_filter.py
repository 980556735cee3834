"""Which lines of a log are wanted: by pattern, level and time, while it grows too."""

from __future__ import annotations

import os
import re
from datetime import datetime
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.looking.logs import line_filter, moment_of
from orchestrator.runs.files.log_filter import Level, LineFilter, level_of, time_of
from orchestrator.runs.files.logs import Selection, Tail
from orchestrator.runs.store import RunDir

from .test_logs import lines, log

NOW = datetime(2026, 11, 22, 15, 0).timestamp()
LOG = """\
begins
2026-11-22 14:00:00,123 INFO old
  its second line
2026-11-22 14:30:00,000 WARNING loss is nan
  at step 3
plain
Traceback (most recent call last):
  File "x.py", line 1, in <module>
ValueError: boom
after it
[rank0]:[W1122 14:40:00.5 ProcessGroup.cpp:12] Warning: slow
/x/y.py:12: UserWarning: old tensor
ERROR: no space
INFO - INFORMATION
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "r-1")
    log(run, LOG.encode())
    return run


def wanted(run: RunDir, wanted: LineFilter | None, last: int | None = None) -> list[str]:
    tail = Tail(run, Selection(), wanted)
    if last is not None:
        tail.skip_to_last(last)
    return lines(tail, ended=True)


def test_by_level_with_what_belongs_to_a_line(run: RunDir) -> None:
    shown = LOG.splitlines()
    assert wanted(run, LineFilter(level=Level.WARNING)) == [*shown[3:5], *shown[6:9], *shown[10:13]]
    assert wanted(run, LineFilter(level=Level.ERROR)) == [*shown[6:9], shown[12]]


def test_by_pattern_and_the_last_of_what_matches(run: RunDir) -> None:
    found = wanted(run, LineFilter(re.compile(r"^ |boom")))
    assert found == [line for line in LOG.splitlines() if line.startswith(" ") or "boom" in line]
    assert wanted(run, LineFilter(re.compile(r"^ |boom")), 2) == found[-2:]
    assert wanted(run, LineFilter(re.compile("nothing"))) == []


def test_a_line_without_a_time_has_that_of_the_line_before(run: RunDir) -> None:
    since = line_filter("14:30", None, None, NOW)
    assert since is not None
    assert wanted(run, since) == LOG.splitlines()[3:]
    assert since.logs_without_times == set()


def test_a_log_without_times_is_shown_where_it_was_written_to_since(run: RunDir) -> None:
    path = log(run, b"no time\n", attempt=1)
    new, old = LineFilter(since=NOW), LineFilter(since=NOW + 1)
    os.utime(path, (NOW, NOW))
    os.utime(path.parents[1] / "attempt_0/rank_0.log", (NOW - 9, NOW - 9))
    assert wanted(run, new) == ["no time"]
    assert [each.attempt for each in new.logs_without_times] == [1]
    assert wanted(run, old) == []


def test_a_growing_log_is_filtered_as_it_grows(run: RunDir) -> None:
    tail = Tail(run, Selection(), LineFilter(level=Level.ERROR))
    tail.skip_to_last(1)
    assert lines(tail) == ["ERROR: no space"]
    with open(run.node(0) / "attempt_0/rank_0.log", "a") as file:
        file.write("  goes on\nERROR: two\nERROR: three\nfine\n")
    assert lines(tail) == ["ERROR: two", "ERROR: three"]
    assert tail.open_line() is None


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-11-22 14:00:00,1 - root - WARNING - x", Level.WARNING), ("[ERROR] x", Level.ERROR),
        ("warning: x", Level.WARNING), ("INFORMATION", None), ("no ERRORS here", None), ("DEBUG:root:x", Level.DEBUG),
        ("E1122 14:40:00.123456 12 x.cc:3] y", Level.ERROR), ("FATAL x", Level.CRITICAL), ("loss 0.1", None),
    ],
)  # fmt: skip
def test_levels(line: str, level: Level | None) -> None:
    assert level_of(line) == level


@pytest.mark.parametrize(
    ("line", "moment"),
    [
        ("2026-11-22T14:00:00Z x", 1795356000.0), ("[2026/11/22 15:00:00,500+01:00] x", 1795356000.5),
        ("2026-13-45 99:00:00 x", None), ("step 3", None), ("12026-11-22 14:00:00", None),
    ],
)  # fmt: skip
def test_times(line: str, moment: float | None) -> None:
    assert time_of(line) == moment


def test_a_time_without_a_year_is_the_last_one() -> None:
    assert time_of("I1122 14:00:00.5 x", NOW) == datetime(2026, 11, 22, 14, 0, 0, 500000).timestamp()
    assert time_of("I1231 14:00:00.5 x", NOW) == datetime(2025, 12, 31, 14, 0, 0, 500000).timestamp()


def test_what_is_typed() -> None:
    assert moment_of("10m", NOW) == NOW - 600
    assert moment_of("14:30", NOW) == NOW - 1800
    assert moment_of("15:00:01", NOW) == NOW + 1 - 86400
    assert moment_of("2026-11-22", NOW) == NOW - 15 * 3600
    assert moment_of("2026-11-22T14:30", NOW) == NOW - 1800
    assert line_filter(None, None, None, NOW) is None
    for text in ("soon", "2026-99-99", "25:00", "", "2026-11-22T25:00"):
        with pytest.raises(UsageError, match="is neither a duration nor a time"):
            moment_of(text, NOW)
    with pytest.raises(UsageError, match="is in the future"):
        moment_of("2026-11-23", NOW)
    with pytest.raises(UsageError, match=r"--grep 'a\[b': unterminated character set at character 2"):
        line_filter(None, "a[b", None, NOW)
    for text in ("[[:", "[a||b"):  # Python warns of them first
        with pytest.raises(UsageError, match="unterminated character set"):
            line_filter(None, text, None, NOW)
    found = line_filter(None, "[[:alpha:]]", None, NOW)
    assert found is not None


def test_a_levels_word_is_made_of_ascii_letters() -> None:
    assert level_of("info: x") is Level.INFO
    for word in ("\u0130nfo", "\u0131nfo", "INF\u00d6", "cr\u0131tical", "crit\u0130cal"):
        assert level_of(f"{word}: x") is None
        assert level_of(f"[{word}] x") is None
