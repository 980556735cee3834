"""The file of the metrics that were read: thinned, without repeats, and of bounded size."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.agent.metrics import kept
from orchestrator.node.agent.metrics.following import Point
from orchestrator.node.agent.metrics.kept import KeptMetrics


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def point(step: float, time: float | None = None, **values: float) -> Point:
    return Point(step, time, values)


def test_metrics_of_one_step_take_one_line(tmp_path: Path) -> None:
    found = KeptMetrics(str(path := tmp_path / "metrics.jsonl"))
    found.add(point(1, loss=0.5), 0)
    found.add(point(1, 1.7e9, acc=0.1), 0)
    found.add(point(2, loss=math.nan), 0)
    found.add(Point(2, None, {"loss": 0.4, "attempt": 3.0, "time": 7.0}), 1)
    found.end()
    assert lines(path) == [
        {"step": 1, "loss": 0.5, "attempt": 0, "acc": 0.1, "time": 1.7e9},
        {"step": 2, "loss": 0.4, "attempt": 1},
    ]


def test_points_that_are_read_again_are_written_once_also_by_another_agent(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for _ in range(2):
        found = KeptMetrics(str(path))
        for _ in range(2):
            for step in range(5):
                found.add(point(step, loss=step / 8, acc=1), 0)
        found.end()
    assert [line["step"] for line in lines(path)] == list(range(5))


def test_a_step_that_is_done_again_counts_with_its_new_value(tmp_path: Path) -> None:
    found = KeptMetrics(str(path := tmp_path / "metrics.jsonl"))
    for attempt, steps in ((0, (1, 2, 3)), (1, (2, 3, 4))):
        for step in steps:
            found.add(point(step, loss=step + attempt / 2), attempt)
    found.end()
    assert [(line["step"], line["loss"]) for line in lines(path)] == [
        (1, 1),
        (2, 2),
        (3, 3),
        (2, 2.5),
        (3, 3.5),
        (4, 4.5),
    ]


@given(count=st.integers(1, 60_000), stride=st.sampled_from([1, 7, 1000]))
def test_many_points_are_thinned_evenly_and_the_last_one_is_kept(
    tmp_path_factory: pytest.TempPathFactory, count: int, stride: int
) -> None:
    found = KeptMetrics(str(path := tmp_path_factory.mktemp("many") / "metrics.jsonl"))
    for number in range(count):
        found.add(point(number * stride, loss=number), 0)
    found.end()
    steps = [line["step"] // stride for line in lines(path)]
    assert steps == sorted(set(steps))
    assert steps[-1] == count - 1
    assert steps[: kept.OCTAVE] == list(range(min(count, kept.OCTAVE)))
    assert len(steps) <= kept.OCTAVE * (2 + math.log2(1 + count / kept.OCTAVE))
    assert all(after - before <= max(2, before / 256) for before, after in itertools.pairwise(steps))


def test_there_is_a_limit_to_metrics_points_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_METRICS", 3)
    monkeypatch.setattr(kept, "MOST_POINTS", 10)
    found = KeptMetrics(str(path := tmp_path / "metrics.jsonl"))
    found.add(Point(0, None, {"": 1.0, "x" * 201: 1.0, "kind": 1.0}), 0)
    for step in range(100):
        found.add(Point(step, None, {f"m{number}": 1.0 for number in range(5)}), 0)
    found.end()
    values = [name for line in lines(path) for name in line.keys() - {"step", "attempt"}]
    assert set(values) == {"m0", "m1", "m2"}
    assert len(values) == 10 + 3  # and the last ones


def test_a_line_that_was_cut_off_takes_no_other_with_it(tmp_path: Path) -> None:
    (path := tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": 1, "attempt": 0}\n{"step": 2, "lo')
    found = KeptMetrics(str(path))
    for step in (1, 2, 3):
        found.add(point(step, loss=step), 0)
    found.end()
    whole = [json.loads(line) for line in path.read_bytes().split(b"\n") if line.endswith(b"}")]
    assert [line["step"] for line in whole] == [1, 2, 3]
