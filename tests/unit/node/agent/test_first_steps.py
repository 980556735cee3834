"""What rank 0's program says of the step that it begins with: by its heartbeats, or by its metrics."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent.first_steps import FirstSteps


def lines(*steps: Any) -> str:
    return "".join(json.dumps({"kind": "train", "step": step, "loss": 0.5}) + "\n" for step in steps)


@pytest.fixture
def watch(tmp_path: Path) -> FirstSteps:
    """One of a second attempt, whose metrics are appended to those of the first."""
    (tmp_path / "metrics.jsonl").write_text(lines(1, 2, 3))
    return FirstSteps(str(tmp_path / "beat_0"), str(tmp_path / "metrics.jsonl"))


def append(watch: FirstSteps, text: str) -> None:
    with open(watch.metrics, "a") as file:
        file.write(text)


def test_the_step_that_the_library_has_loaded_is_told_once(watch: FirstSteps) -> None:
    assert watch.look() is None
    Path(watch.heartbeat).write_text(json.dumps({"step": 300, "loaded": 300, "first": 301, "second": 302}))
    assert watch.look() == {"loaded": 300}
    assert watch.look() is None


def test_two_steps_of_the_heartbeats_tell_where_a_program_begins(watch: FirstSteps) -> None:
    Path(watch.heartbeat).write_text(json.dumps({"step": 1, "loaded": None, "first": 1, "second": None}))
    assert watch.look() is None
    Path(watch.heartbeat).write_text(json.dumps({"step": 70, "loaded": None, "first": 1, "second": 2}))
    assert watch.look() == {"steps": [1, 2]}


def test_a_program_without_heartbeats_is_known_by_what_it_appends_to_its_metrics(watch: FirstSteps) -> None:
    append(watch, lines(60) + '{"step": 70')
    assert watch.look() is None  # half a line
    append(watch, "}\n")
    assert watch.look() == {"steps": [60, 70]}


@pytest.mark.parametrize("text", ["", "x\n", "[]\n5\n", lines(None, "7", True, -3), lines(7, 7, 6), "\xff\n" * 9])
def test_what_tells_no_two_steps_tells_nothing(watch: FirstSteps, text: str) -> None:
    append(watch, text)
    assert watch.look() is None


def test_metrics_that_are_no_file_of_its_own_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "other").write_text(lines(60, 70))
    (tmp_path / "link").symlink_to("other")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "missing"):
        watch = FirstSteps(str(tmp_path / "beat_0"), str(tmp_path / name))
        watch.offset = 0
        assert watch.look() is None
