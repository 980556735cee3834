"""Which rank stands still, by its heartbeats; and who of those is to blame."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent.stall_detector import HeartbeatReader, StallDetector, culprit_of_hang
from orchestrator.node.agent.standstill import Silence
from orchestrator.protocol.messages import Moved, Patience, Stalled
from orchestrator.protocol.rank_reports import RankStack
from orchestrator.protocol.typed import read


def silence(rank: int, step: int, *, between_steps: bool = False) -> Silence:
    return Silence(0, 0.0, rank, "train", step, 60.0, 60.0, between_steps, full=True)


def blamed(stalls: list[Silence], stacks: dict[int, dict[str, Any]]) -> int:
    return culprit_of_hang(stalls, {rank: read(RankStack, seen) for rank, seen in stacks.items()}).rank


def heartbeat(step: int, phase: str = "train", time: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"step": step, "phase": phase, "time": time, **more}


def test_a_rank_that_steps_is_quiet() -> None:
    detector = StallDetector(train=60, medians=10, other=1800)
    assert [detector.stalls({0: heartbeat(step, time=step)}, now=step) for step in range(100)] == [[]] * 100


def test_half_and_whole_limit_in_training() -> None:
    detector = StallDetector(train=60, medians=10, other=1800)
    for step in range(1, 11):
        detector.stalls({0: heartbeat(step, time=step)}, now=step)
    assert detector.stalls({0: heartbeat(10, time=10)}, now=39.9) == []
    half = detector.stalls({0: heartbeat(10, time=10)}, now=41)
    assert [(s.rank, s.step, s.limit, s.full) for s in half] == [(0, 10, 60, False)]
    assert detector.stalls({0: heartbeat(10, time=10)}, now=70)[0].full


def test_slow_steps_have_a_longer_limit() -> None:
    detector = StallDetector(train=60, medians=10, other=1800)
    for step in range(1, 6):
        detector.stalls({0: heartbeat(step, time=step * 30)}, now=step * 30)
    assert detector.stalls({0: heartbeat(5, time=150)}, now=150 + 149) == []
    assert detector.stalls({0: heartbeat(5, time=150)}, now=150 + 151)[0].limit == 300


@pytest.mark.parametrize("phase", ["start", "eval", "save", "output"])
def test_other_phases_have_the_other_limit(phase: str) -> None:
    detector = StallDetector(train=60, medians=10, other=1800)
    detector.stalls({0: heartbeat(1, time=1, loss=0.5)}, now=1)
    detector.stalls({0: heartbeat(1, phase, time=2)}, now=2)
    assert detector.stalls({0: heartbeat(1, phase, time=2)}, now=800) == []
    assert detector.stalls({0: heartbeat(1, phase, time=2)}, now=1803)[0].full


def test_the_first_step_has_the_other_limit() -> None:
    detector = StallDetector(train=60, medians=10, other=1800)
    detector.stalls({0: heartbeat(500, "train", time=1)}, now=1)  # resumed there, and no step has been made since
    assert detector.stalls({0: heartbeat(500, "train", time=1)}, now=700) == []


@pytest.mark.parametrize("proof", ["loss", "rate", "eta"])
def test_steps_that_all_came_between_two_looks_count(proof: str) -> None:
    detector = StallDetector(train=60, medians=10, other=1800)
    detector.stalls({0: heartbeat(29, time=1, **{proof: 1.0})}, now=1)
    assert detector.stalls({0: heartbeat(29, time=1, **{proof: 1.0})}, now=62)[0].full


def test_done_and_unheard_ranks_never_stall() -> None:
    detector = StallDetector(train=60, medians=10, other=1800)
    detector.stalls({0: heartbeat(5, "done", time=1), 1: None}, now=1)
    assert detector.stalls({0: heartbeat(5, "done", time=1), 1: None}, now=1e6) == []


STALLS = [silence(rank, 29) for rank in range(4)]
WAITS = {"state": "S", "in_collective": True, "where": "line 18"}


@pytest.mark.parametrize(
    "odd",
    [
        {"state": "T", "in_collective": None, "where": None},
        {"state": "S", "in_collective": False, "where": "line 14"},
        {"state": "R", "in_collective": False, "where": "re.py"},
        {"state": "S", "in_collective": True, "where": "line 16"},
    ],
)
def test_the_odd_one_out_is_to_blame(odd: dict[str, Any]) -> None:
    for rank in range(4):
        stacks = dict.fromkeys(range(4), WAITS) | {rank: odd}
        assert blamed(STALLS, stacks) == rank


def test_who_is_late_with_its_answer_is_not_odd() -> None:
    unknown = {"state": "R", "in_collective": None, "where": None, "late": True}
    odd = {"state": "S", "in_collective": True, "where": "line 16"}
    assert blamed(STALLS, dict.fromkeys(range(4), WAITS) | {0: unknown, 3: odd}) == 3
    assert blamed(STALLS, dict.fromkeys(range(4), WAITS) | {0: {**unknown, "late": False}}) == 0


def test_the_fewest_steps_decide_where_stacks_do_not() -> None:
    stalls = [silence(rank, 29 - (rank == 2)) for rank in range(4)]
    assert blamed(stalls, {}) == 2


def test_ranks_whose_folder_was_removed_under_them_are_not_said_to_stand_still(tmp_path: Path) -> None:
    reader, folder = (
        HeartbeatReader({"action": "auto", "train": 60, "medians": 10, "other": 1800}),
        tmp_path / "attempt_0",
    )
    folder.mkdir()
    (folder / "beat_0").write_text(json.dumps(heartbeat(1, time=1)))
    reader.new_stalls(str(folder), [0], now=1)
    (folder / "beat_0").write_text(json.dumps(heartbeat(2, time=2)))
    reader.new_stalls(str(folder), [0], now=2)
    assert [stall.full for stall in reader.new_stalls(str(folder), [0], now=63)] == [True]
    shutil.rmtree(folder)
    assert reader.new_stalls(str(folder), [0], now=700) == []


LIMITS = {"action": "auto", "train": 60, "medians": 10, "other": 1800}


def beat(folder: Path, rank: int, step: int, phase: str = "train", **more: Any) -> None:
    (folder / f"beat_{rank}").write_text(json.dumps(heartbeat(step, phase, **more)))


def test_a_rank_in_a_longer_phase_is_reported_with_the_rest_of_its_limit_as_it_enters_and_leaves(
    tmp_path: Path,
) -> None:
    reader = HeartbeatReader(LIMITS)
    (tmp_path / "rank_1.log").write_text("a program without heartbeats is in no phase of its own")
    beat(tmp_path, 0, 4, loss=1.0)
    assert reader.news(str(tmp_path), [0, 1], now=10) == []
    beat(tmp_path, 0, 4, "save")
    assert reader.news(str(tmp_path), [0, 1], now=20) == [Patience(0, 1800)]
    assert reader.news(str(tmp_path), [0, 1], now=500) == []
    beat(tmp_path, 0, 4)
    assert reader.news(str(tmp_path), [0, 1], now=501) == [Patience(0, 0)]


@pytest.mark.parametrize("phase", ["start", "compile", "eval", "save", "train"])
def test_a_phase_is_long_until_its_limit_counted_from_its_beginning(tmp_path: Path, phase: str) -> None:
    reader = HeartbeatReader(LIMITS)
    beat(tmp_path, 0, 0, phase)  # no step was made yet
    assert reader.news(str(tmp_path), [0], now=10) == [Patience(0, 1800)]
    ends = [news for now in range(20, 2000, 10) for news in reader.news(str(tmp_path), [0], now=now)]
    assert [(news.kind, getattr(news, "full", None), getattr(news, "seconds", None)) for news in ends] == [
        ("stall", False, 900), ("stall", True, 1800), ("patience", None, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["a step", "another phase", "its exit"])
def test_a_rank_whose_stall_was_reported_is_reported_as_it_moves_on(tmp_path: Path, end: str) -> None:
    reader = HeartbeatReader(LIMITS)
    beat(tmp_path, 0, 4, loss=1.0)
    reader.news(str(tmp_path), [0], now=10)
    stalls = [news for now in (41, 50, 71) for news in reader.news(str(tmp_path), [0], now=now)]
    assert [(news.full, news.between_steps) for news in stalls if isinstance(news, Stalled)] == [
        (False, True),
        (True, True),
    ]
    beat(tmp_path, 0, 5 if end == "a step" else 4, "eval" if end == "another phase" else "train", loss=1.0)
    news = reader.news(str(tmp_path), [] if end == "its exit" else [0], now=72)
    assert news[0] == Moved(0, 0)
    assert [each for each in reader.news(str(tmp_path), [0], now=73) if isinstance(each, Moved)] == []


def test_of_ranks_outside_collectives_the_one_that_exceeded_a_longer_limit_is_to_blame() -> None:
    stalls = [silence(rank, 7, between_steps=rank != 2) for rank in range(4)]
    outside = {rank: {"state": "S", "in_collective": False, "where": "line 3"} for rank in range(4)}
    assert blamed(stalls, outside | {2: {**outside[2], "where": "save"}}) == 2
    assert blamed(stalls, {}) == 2
