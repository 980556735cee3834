"""What a terminal is left with after a program's progress bars: fed at once, in pieces, and as tqdm really writes."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol.terminal_lines import MAX_LINE, TerminalLines, lines_of

PIECES = ["a", "b ", "\r", "\n", "\b", "\x1b[A", "\x1b[2A", "\x1b[K", "\x1b[2K", "\x1b", "[", " ", "\x1b[", "123"]
WRITTEN = st.lists(st.sampled_from(PIECES)).map("".join)


@given(WRITTEN, st.lists(st.integers(0, 60)))
def test_pieces_are_as_good_as_the_whole(text: str, cuts: list[int]) -> None:
    reader = TerminalLines()
    ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    lines = [line for begin, end in pairwise(ends) for line in reader.feed(text[begin:end])]
    assert [*lines, *reader.end()] == lines_of(text)


@given(WRITTEN)
def test_no_line_is_made_up_and_no_return_is_left(text: str) -> None:
    lines = lines_of(text)
    assert len(lines) <= text.count("\n") + 1
    assert all(letter in text for line in lines for letter in line)
    assert not any(control in line for line in lines for control in "\r\b\n")


@given(st.text(st.characters(exclude_characters="\r\b\x1b")))
def test_plain_text_is_its_lines(text: str) -> None:
    assert lines_of(text) == text.removesuffix("\n").split("\n") if text else lines_of(text) == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("\r 10%\r 20%\n", [" 20%"]),
        (" 10%\r 20%\r", [" 20%"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("\r100%|##########| 9/9\r1%", ["1%"]),
        ("\r 10%\r     \rlogged\n\r 20%\r     \r", ["logged"]),
        ("1/3 [=>..]\b\b\b\b\b\b[==>.]", ["1/3 [==>.]"]),
        ("working |\b/\b-\bdone\n", ["working done"]),
        ("old\r\x1b[Knew\x1b[2Klast\n", ["last"]),
        ("a\n\nb", ["a", "", "b"]),
        ("\x1b[1", ["\x1b[1"]),
        ("a\n\x1b[" + "9" * 5000 + "A\n", ["a", "\x1b[" + "9" * 5000 + "A"]),
        ("a\rb\n\x1b[999999Ac\n", ["bc"]),
    ],
)
def test_what_is_left(text: str, lines: list[str]) -> None:
    assert lines_of(text) == lines


def test_a_finished_bar_waits_for_what_follows_and_lines_do_not() -> None:
    reader = TerminalLines()
    assert reader.feed("a\r\nb\n") == ["a", "b"]
    assert reader.feed("\r 50%\r100%\n") == []
    assert reader.open_line == "100%"
    assert reader.feed("done\n") == ["100%", "done"]
    assert reader.open_line == ""


def test_a_long_line_comes_in_pieces() -> None:
    assert "".join(lines_of("x" * (2 * MAX_LINE + 1))) == "x" * (2 * MAX_LINE + 1)


@pytest.mark.parametrize("start", ["\x1b[", "\x1b", "x", "\x1b[1;"])
def test_a_sequence_that_never_ends_is_text_and_is_not_looked_at_again_and_again(start: str) -> None:
    text = start + "1" * (1 << 20)
    assert "".join(lines_of(text)) == text
    reader, lines = TerminalLines(), []
    for at in range(0, len(text), 1 << 12):
        lines += reader.feed(text[at : at + (1 << 12)])
        assert len(reader._pending) <= 8  # all of what a next piece is read with once more
    assert "".join([*lines, *reader.end()]) == text


@pytest.mark.parametrize("leave", [False, True])
def test_nested_bars_as_tqdm_writes_them(leave: bool) -> None:
    tqdm = pytest.importorskip("tqdm").tqdm
    out = io.StringIO()

    def bar(count: int, name: str, **options: object) -> object:
        return tqdm(range(count), desc=name, file=out, mininterval=0, miniters=1, **options)

    for epoch in bar(2, "epochs"):
        for _ in bar(50, f"epoch {epoch}", leave=leave):
            pass
        tqdm.write(f"loss of {epoch}", file=out)
    lines = [line.partition("|")[0].strip() for line in lines_of(out.getvalue())]
    assert [line for line in lines if line.startswith("loss")] == ["loss of 0", "loss of 1"]
    assert lines[-1] == "epochs: 100%"
    assert "" not in lines
    assert len(lines) <= 8
