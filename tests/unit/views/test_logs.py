"""Windows onto a log: paged through in both directions every line is there once, and a search finds what is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.views import logs
from orchestrator.views.logs import LogPage, RankLog

lines = st.lists(st.text(st.characters(codec="ascii", categories=["L", "N"]), max_size=12), max_size=60)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs") / "rank_0.log"


@pytest.fixture(autouse=True, scope="module")
def _small_pages() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "PAGE_BYTES", 64)
        patch.setattr(logs, "CHUNK", 16)
        yield


def write(path: Path, data: bytes, rotated: int) -> RankLog:
    """The log, with so many of its bytes in the file that was rotated away."""
    path.with_name("rank_0.log.1").write_bytes(data[:rotated])
    path.write_bytes(data[rotated:])
    return RankLog(path, 0, 0)


def texts(pages: list[LogPage]) -> list[str]:
    return [line.text for page in pages for line in page.lines]


@settings(max_examples=150)
@given(lines, st.integers(1, 9), st.integers(0, 200), st.booleans())
def test_every_line_is_there_once_forwards_and_backwards(
    path: Path, written: list[str], height: int, rotated: int, ended: bool
) -> None:
    text = "\n".join(written) + ("\n" if ended and written else "")
    expected = text.split("\n")[: -1 if text.endswith("\n") or not text else None]
    log = write(path, text.encode(), min(rotated, len(text)))
    down, at = list[LogPage](), 0
    while at < log.size:
        down.append(log.after(at, height))
        assert down[-1].start == at
        at = down[-1].end
    assert texts(down) == expected
    up, at = list[LogPage](), log.size
    while at > 0:
        up.append(log.before(at, height))
        assert up[-1].end == at
        at = up[-1].start
    assert texts(up[::-1]) == expected
    for line in (line for page in down for line in page.lines):
        assert log.after(line.offset, 1).lines == (line,)
        assert line in log.around(line.offset, height).lines


@settings(max_examples=150)
@given(st.text("abX\n", max_size=120), st.text("abX", min_size=1, max_size=5), st.integers(0, 120), st.booleans())
def test_a_search_finds_the_next_place(path: Path, text: str, words: str, start: int, backwards: bool) -> None:
    log = write(path, text.encode(), len(text) // 3)
    start = min(start, len(text))
    told, asked = (text, words) if words != words.lower() else (text.lower(), words)
    expected = told[: start + len(words) - 1].rfind(asked) if backwards else told.find(asked, start)
    found = log.find(words, start, backwards=backwards)
    assert found.offset == (expected if expected >= 0 else None)
    assert found.is_over == (expected < 0)


def test_a_search_stops_after_a_while_and_goes_on_from_there(path: Path) -> None:
    log = write(path, b"." * 100 + b"here", 0)
    first = log.find("here", 0, most=32)
    assert (first.offset, first.reached, first.is_over) == (None, 32, False)
    assert log.find("here", first.reached).offset == 100


def test_a_progress_bar_is_its_last_state_and_an_endless_line_comes_in_pieces(path: Path) -> None:
    log = write(path, b"begin\r\n10%\r50%\r\x1b[K90%\n\xff\xc3\xa9\n", 0)
    assert texts([log.last(9)]) == ["begin", "90%", "\ufffdé"]
    log = write(path, b"x" * 200, 0)
    assert [len(text) for text in texts([log.last(5)])] == [64]
    assert log.before(log.last(5).start, 5).end == 136


def test_a_log_that_is_not_there_or_goes_away_is_empty(path: Path) -> None:
    assert RankLog(None, 0, 3).last(5).lines == ()
    log = write(path, b"one\ntwo\n", 0)
    path.unlink()
    assert log.last(5).lines == ()
    assert RankLog(path, 0, 0).find("one", 0).is_over
