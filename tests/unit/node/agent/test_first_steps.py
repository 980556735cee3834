"""What rank 0's program says of the step that it begins with: by its heartbeats, or by its metrics."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent.first_steps import FirstSteps, first_saved
from orchestrator.node.server.outputs import baseline
from orchestrator.protocol.checkpoints.of_run import Places
from orchestrator.protocol.code_baseline import write_baseline
from tests.unit.specs.test_plan import planned


def lines(*steps: Any) -> str:
    return "".join(json.dumps({"kind": "train", "step": step, "loss": 0.5}) + "\n" for step in steps)


@pytest.fixture
def watch(tmp_path: Path) -> FirstSteps:
    """One of a second attempt, whose metrics are appended to those of the first."""
    (tmp_path / "metrics.jsonl").write_text(lines(1, 2, 3))
    return FirstSteps(str(tmp_path / "beat_0"), str(tmp_path / "metrics.jsonl"), str(tmp_path / "read"))


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
        watch = FirstSteps(str(tmp_path / "beat_0"), str(tmp_path / name), str(tmp_path / "read"))
        watch.offset = 0
        assert watch.look() is None


def test_a_checkpoint_that_rank_0_has_read_is_told_before_its_steps_are(watch: FirstSteps) -> None:
    Path(watch.marker).touch()
    append(watch, lines(1, 2))
    assert watch.look() == {"read": True}
    assert watch.look() is None


@pytest.mark.parametrize(
    ("offered", "saved", "found"),
    [
        ("ck/step-20.pt", ["ck/step-30.pt"], (20, 30)),
        ("ck/step-20.pt", ["ck/step-30.pt", "ck/step-10.pt"], (20, 10)),
        ("ck/step-20.pt", ["ck/step-20.pt", "ck/step-30.pt"], (20, 20)),  # it was saved again
        ("ck/step-20.pt", [], None),
        ("ck/step-20.pt", ["other/step-30.pt", "ck/best-30.pt", "ck/step-30.pth"], None),
        ("ck/last.pt", ["ck/last.pt"], None),
        ("ck/2026-11-28.pt", ["ck/2026-11-29.pt"], None),
        ("ck/20261128.pt", ["ck/20261129.pt"], None),
    ],
)
def test_a_file_with_a_greater_number_in_its_name_follows_the_offered_one(
    tmp_path: Path, offered: str, saved: list[str], found: tuple[int, int] | None
) -> None:
    task = replace(planned().tasks[0], run_dir=str(tmp_path), code_dir=str(tmp_path / "code"))
    (tmp_path / "code").mkdir()
    write_baseline(str(tmp_path / "code"), baseline(str(tmp_path / "code")))

    def save(name: str) -> None:
        path = tmp_path / "code" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\x80\x02weights")

    save(offered)
    os.utime(tmp_path / "code" / offered, (1e9, 1e9))
    before = Places.of(task).own()
    for name in saved:
        save(name)
    assert first_saved(task, before[f"code/{offered}"], before) == found
