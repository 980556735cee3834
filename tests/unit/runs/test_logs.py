"""Logs while they grow: progress bars, cut lines and characters, several ranks and attempts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.protocol.terminal_lines import lines_of
from orchestrator.runs.files import logs
from orchestrator.runs.files.logs import (
    Selection,
    Tail,
    beat_of,
    beats_of,
    last_line,
    launchers_instead,
    log_files,
    offset_of_last,
    result_of,
)
from orchestrator.runs.store import RunDir

PIECES = [
    b"a",
    b"bb ",
    b"\r",
    b"\n",
    b"\r\n",
    b"\xc3",
    b"\xa9",
    b"\xff",
    b"",
    b"\x1b[A",
    b"\x1b[",
    b"\x1b[K",
    b"\b",
    b" ",
]
pieces = st.lists(st.sampled_from(PIECES), max_size=30)


def log(run: RunDir, data: bytes = b"", node: int = 0, attempt: int = 0, rank: int = 0) -> Path:
    path = run.node(node) / f"attempt_{attempt}" / f"rank_{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def lines(tail: Tail, *, ended: bool = False) -> list[str]:
    return [line for _, line in tail.read(ended=ended)]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "r-1")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return RunDir(tmp_path_factory.mktemp("logs") / "r-1")


@settings(max_examples=300)
@given(pieces, st.integers(1, 7))
def test_a_growing_log_is_read_as_if_at_once(scratch: RunDir, written: list[bytes], chunk: int) -> None:
    path = log(scratch)
    tail, seen = Tail(scratch, Selection()), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "CHUNK", chunk)
        for piece in written:
            with open(path, "ab") as file:
                file.write(piece)
            seen += lines(tail)
        seen += lines(tail, ended=True)
    assert seen == lines_of(b"".join(written).decode("utf-8", "replace"))


@settings(max_examples=300)
@given(pieces, st.integers(0, 6), st.integers(1, 7))
def test_the_last_lines_are_the_last_lines(scratch: RunDir, written: list[bytes], number: int, chunk: int) -> None:
    data = b"".join(written)
    log(scratch, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "CHUNK", chunk)
        rest = data[offset_of_last(log_files(scratch, Selection())[0], number) :]
    whole = re.findall(rb"[^\n]*\n|[^\n]+", data)
    assert rest == (b"".join(whole[-number:]) if number else b"")


def test_a_progress_bar_is_one_line_that_changes(run: RunDir) -> None:
    path = log(run, b"start\n")
    tail = Tail(run, Selection())
    assert lines(tail) == ["start"]
    with open(path, "ab") as file:
        file.write(b"\r 10%\r 20%\r 3")
        file.flush()
        assert (lines(tail), tail.open_line()) == ([], (log_files(run, Selection())[0], " 3"))
        file.write(b"0%\r")
        file.flush()
        assert (lines(tail), tail.open_line()[1]) == ([], " 30%")
        file.write(b"\ndone")
        file.flush()
        assert (lines(tail), tail.open_line()[1]) == ([], "done")
        assert last_line(run, 0) == "done"
    assert lines(tail, ended=True) == [" 30%", "done"]
    assert lines(tail, ended=True) == []


def test_the_last_state_of_an_attempt_comes_before_the_next_one(run: RunDir) -> None:
    log(run, b"\r 10%\r 20%")
    tail = Tail(run, Selection())
    assert lines(tail) == []
    log(run, b"again\n", attempt=1)
    assert lines(tail) == [" 20%", "again"]


def test_bytes_are_read_as_they_are(run: RunDir) -> None:
    path, data = log(run), b"a\r\n\r 10%\xff\x1b[A\n\n b"
    path.write_bytes(data)
    tail = Tail(run, Selection())
    assert b"".join(chunk for _, chunk in tail.read_bytes()) == data


@pytest.mark.parametrize(
    "noise",
    [
        "[W1125 08:00:00.123456789 socket.cpp:755] [c10d] The client socket has failed to connect to [n1]:29500",
        "[rank0]:[W1125 08:00:00.5 ProcessGroupNCCL.cpp:4561] Guessing device ID",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect",
        "W1125 08:00:00.000000 812 torch/distributed/run.py:766] Setting OMP_NUM_THREADS",
        "n1:812:812 [0] NCCL INFO Bootstrap: Using eth0",
        "/env/torch/nn/x.py:12: UserWarning: slow\n  warnings.warn(",
    ],
)
def test_what_libraries_log_is_not_the_programs_last_line(run: RunDir, noise: str) -> None:
    log(run, f"{noise}\n".encode())
    assert last_line(run, 0) == ""
    log(run, f"epoch 3\n{noise}\n".encode())
    assert last_line(run, 0) == "epoch 3"
    log(run, f"{noise}\n 30%|###".encode())
    assert last_line(run, 0) == " 30%|###"


def test_the_last_line_is_found_near_the_end_of_a_large_log(run: RunDir) -> None:
    assert last_line(run, 0) == ""
    log(run, b"x" * 100_000 + b"\n" + b"".join(b"\r%d%%" % each for each in range(10_000)) + b"\n\n")
    assert last_line(run, 0) == "9999%"
    log(run, b"x" * 100_000 + b"\n\n")
    assert set(last_line(run, 0)) == {"x"}


def test_a_line_without_end_is_shown_in_pieces_and_costs_linear_time(run: RunDir) -> None:
    """A megabyte without a line end: quadratic work would take hours, and the test's time-out would end it."""
    log(run, b"x" * 1_000_000)
    assert "".join(lines(Tail(run, Selection()), ended=True)) == "x" * 1_000_000
    assert offset_of_last(log_files(run, Selection())[0], 3) == 0


def test_attempts_come_in_order_and_ranks_within_them(run: RunDir) -> None:
    for attempt, rank, node in [(1, 0, 0), (0, 10, 1), (0, 2, 1), (0, 0, 0), (10, 0, 0)]:
        log(run, f"{attempt}.{rank}\n".encode(), node, attempt, rank)
    (run.node(0) / "attempt_0" / "rank_0.log.old").write_text("no log")
    assert lines(Tail(run, Selection(everything=True))) == ["0.0", "0.2", "0.10", "1.0", "10.0"]
    assert lines(Tail(run, Selection())) == ["0.0", "1.0", "10.0"]


@pytest.mark.parametrize(
    ("selection", "ranks"),
    [
        (Selection(), [0]),
        (Selection(rank=3), [3]),
        (Selection(node=1), [2, 3]),
        (Selection(rank=2, node=1), [2]),
        (Selection(rank=0, node=1), []),
        (Selection(rank=1, everything=True), [0, 1, 2, 3]),
        (Selection(rank=9), []),
    ],
)
def test_selections(run: RunDir, selection: Selection, ranks: list[int]) -> None:
    for rank in range(4):
        log(run, node=rank // 2, rank=rank)
    odd = (
        "nodes/0/attempt_0/rank_0.log.1",
        "nodes/0/attempt_0/rank_x.log",
        "nodes/0/rank_0.log",
        "nodes/x/attempt_0/rank_0.log",
    )
    for name in odd:
        path = run.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [found.rank for found in log_files(run, selection)] == ranks


def test_the_launchers_logs_stand_in_while_no_rank_has_a_log(run: RunDir) -> None:
    assert launchers_instead(run, Selection()) is None
    for node, text in enumerate(("a\n", "b\n", "")):
        run.node(node).mkdir(parents=True)
        (run.node(node) / "launcher.log").write_text(text)
    for selection, nodes in ((Selection(), [0, 1]), (Selection(node=1), [1])):
        instead = launchers_instead(run, selection)
        assert instead is not None
        assert [found.node for found in log_files(run, instead)] == nodes
    assert launchers_instead(run, Selection(node=2)) is None
    log(run, rank=3)
    assert launchers_instead(run, Selection()) is None


def test_tail_counts_for_each_log(run: RunDir) -> None:
    for rank in range(2):
        log(run, f"{rank}a\n{rank}b\n{rank}c\n".encode(), rank=rank)
    tail = Tail(run, Selection(everything=True))
    tail.skip_to_last(2)
    assert lines(tail) == ["0b", "0c", "1b", "1c"]


def test_a_log_that_appears_later_is_read_from_its_start(run: RunDir) -> None:
    tail = Tail(run, Selection(everything=True))
    tail.skip_to_last(1)
    assert lines(tail) == []
    log(run, b"a\nb\n")
    assert lines(tail) == ["a", "b"]


def test_beats_and_results_that_are_broken_are_none(run: RunDir) -> None:
    assert (beat_of(run, 0), result_of(run)) == (None, None)
    folder = log(run).parent
    for text in ("{", "[1]", "", "\x00\x00"):
        (folder / "beat_0").write_text(text)
        (run.path / "result.json").write_text(text)
        assert (beat_of(run, 0), beats_of(run, 0), result_of(run)) == (None, {}, None)
    (folder / "beat_0").write_text(json.dumps({"step": 3}).ljust(511) + "\n")
    (run.path / "result.json").write_text('{"accuracy": 0.9}')
    assert (beat_of(run, 0), beats_of(run, 0), result_of(run)) == ({"step": 3}, {0: {"step": 3}}, {"accuracy": 0.9})
    assert beat_of(run, 1) is None


def test_the_last_lines_go_back_into_what_was_rotated_away_and_no_further_than_asked(run: RunDir) -> None:
    path = log(run, b"".join(b"%d\n" % each for each in range(10, 13)))
    path.with_name("rank_0.log.1").write_bytes(b"".join(b"%d\n" % each for each in range(10)))
    for count, first in ((0, 13), (2, 11), (3, 10), (4, 9), (7, 6), (13, 0), (20, 0)):
        tail = Tail(run, Selection())
        tail.skip_to_last(count)
        assert lines(tail, ended=True) == [str(each) for each in range(first, 13)]


def test_the_last_lines_are_looked_for_in_the_last_16_mib_alone(run: RunDir) -> None:
    path = log(run, b"first\n")
    with path.open("r+b") as file:
        file.truncate(40 << 20)  # sparse, and without another end of a line
    (found,) = log_files(run, Selection())
    assert offset_of_last(found, 10) == 24 << 20
