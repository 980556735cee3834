"""A rank's log has a limit whatever the rank writes, keeps the newest bytes, and says how many are gone."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from orchestrator.node.launcher.rank.log import MIN_LIMIT, RankLog

NOTE = re.compile(rb"\[orch: rank_0\.log reached its limit of \d+ bytes; the (\d+) bytes before this are in "
                  rb"rank_0\.log\.1(?:, and (\d+) bytes before those are gone)?\]\n")  # fmt: skip
WRITE = 40_000


def _written(folder: Path, data: bytes) -> tuple[bytes, bytes]:
    log = RankLog(str(folder / "rank_0.log"), MIN_LIMIT)
    for start in range(0, len(data), WRITE):
        assert log.write(data[start : start + WRITE]) is None
    log.close()
    older = folder / "rank_0.log.1"
    return (folder / "rank_0.log").read_bytes(), older.read_bytes() if older.exists() else b""


@pytest.mark.parametrize(
    "data",
    [
        os.urandom(1_000_000).replace(b"\n", b"n").replace(b"\r", b"r"),
        b"".join(b"\r%6d %%" % number for number in range(100_000)),
        b"".join(b"%09d\n" % number for number in range(100_000)),
        b"x" * 500_000 + b"\n" + b"y" * 500_000,
    ],
    ids=["no line ends", "a bar", "lines", "one line end"],
)
def test_the_limit_holds_whatever_the_bytes_are_and_what_is_gone_is_counted(tmp_path: Path, data: bytes) -> None:
    newest, older = _written(tmp_path, data)
    note = NOTE.match(newest)
    assert note is not None, newest[:200]
    assert len(newest) < MIN_LIMIT + WRITE
    assert len(older) < MIN_LIMIT + WRITE
    kept, before = newest[note.end() :], NOTE.sub(b"", older)
    assert data.endswith(kept)
    assert len(before.removesuffix(b"\n")) <= int(note[1]) <= len(before)
    assert before[: int(note[1])] + kept == data[int(note[2]) :]


def test_no_byte_is_dropped_before_the_limit(tmp_path: Path) -> None:
    data = b"z" * MIN_LIMIT
    assert _written(tmp_path, data) == (data, b"")


@pytest.mark.parametrize("last", [b"", b"0123"], ids=["after a line", "in a line"])
def test_a_short_line_is_never_cut_in_two_nor_an_empty_one_added(tmp_path: Path, last: bytes) -> None:
    """The reader of the rank's pipe may get the pieces of a line one after the other."""
    lines = b"%015d\n" * (MIN_LIMIT // 16) % tuple(range(MIN_LIMIT // 16))
    log = RankLog(str(tmp_path / "rank_0.log"), MIN_LIMIT)
    for data in (lines, last, b"456", b"789\n", b"the next\n"):
        assert log.write(data) is None
    log.close()
    older, newest = ((tmp_path / name).read_bytes() for name in ("rank_0.log.1", "rank_0.log"))
    assert older + NOTE.sub(b"", newest) == lines + last + b"456789\nthe next\n"
    assert older.endswith(b"\n")


def test_a_log_that_cant_be_rotated_counts_what_it_lost_and_goes_on(tmp_path: Path) -> None:
    log = RankLog(str(tmp_path / "rank_0.log"), MIN_LIMIT)
    log.write(b"a" * MIN_LIMIT)
    (tmp_path / "rank_0.log.1").mkdir()
    error = log.write(b"b" * 10_000)
    log.close()
    assert error is not None
    assert (tmp_path / "rank_0.log").read_bytes().endswith(b"b" * 10)
