"""A table of runs: what is in it, and what counts as one line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.looking.run import grouped, wait_all
from orchestrator.runs.store import RunDir
from tests.unit.views.runs_made import FAILED, begin, end, make


def test_a_sweep_that_goes_on_is_one_group_with_its_ended_runs_however_few_are_wanted(tmp_path: Path) -> None:
    names = [*(f"tune-abcdef.{number}" for number in range(3)), "plain-k3x9qz"]
    for name in names:
        run = RunDir(tmp_path / "runs" / name)
        run.path.mkdir(parents=True)
        run.write("run.json", {"run_id": name, "nnodes": 1, "kind": "local", "profile": {}})
    (tmp_path / "index").write_text("\n".join(names) + "\n")
    (tmp_path / "live").mkdir()
    (tmp_path / "live" / names[1]).touch()  # the other points have ended
    found = [[run.run_id for run, _ in group] for group in grouped(tmp_path, everything=False, limit=1)]
    assert found == [names[3:], names[:3]]


def test_the_states_of_all_runs_are_returned_when_all_have_ended_or_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: float) -> None:
        raise AssertionError("there is nothing to wait for")

    monkeypatch.setattr(time, "sleep", refuse)
    ended, running = make(tmp_path, "tune-abcdef.0"), make(tmp_path, "tune-abcdef.1")
    begin(running)
    end(ended, FAILED)
    assert [state.is_final for state in wait_all([ended])] == [True]
    assert [state.is_final for state in wait_all([ended, running], timeout=0)] == [True, False]
