"""Trials get their values when they are started, by a process that has nothing but what was recorded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.errors import StoreError, UsageError
from orchestrator.operations.submission import sweep
from orchestrator.operations.submission.sweep import SearchOptions, prepare_search, submit_sweep
from orchestrator.prepare.prepare import Request, prepare
from orchestrator.runs.dependencies import is_queued
from orchestrator.runs.searches import Sampler
from orchestrator.runs.store import RunDir
from orchestrator.supervisor.queue import recorded_start
from orchestrator.supervisor.searching import give_values

SEARCH = "script: a.py\nmetric: loss\nsearch: {space: {--x: {low: 0.0, high: 1.0}}}\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of which nobody looks after the runs."""
    monkeypatch.setattr(sweep, "start_supervisor", lambda *_, **__: None)
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (home, work):
        folder.mkdir(0o700)
    (work / "a.py").touch()
    (work / "local.yaml").write_text("kind: local\nnproc_per_node: 1\n")
    monkeypatch.chdir(work)
    return home


def submitted(home: Path, job: str, *env: str, trials: int = 2) -> list[RunDir]:
    Path("job.yaml").write_text(job)
    asked = Request("job.yaml", "./local.yaml", env=env)
    return submit_sweep(home, prepare_search(home, asked, SearchOptions(Sampler.RANDOM, trials), None))


def test_a_secret_that_was_given_as_an_option_is_a_trial_s_too(home: Path) -> None:
    run, _ = submitted(home, f"{SEARCH}secrets: [KEY]\nenv: {{B: null}}\n", "KEY=hunter2hunter2", "B=b", "C=c")
    give_values(home, run)
    assert list(run.record().values) == ["--x"]
    plan, held = recorded_start(run)
    assert (held["secrets"], plan.tasks[0].env) == ({"KEY": "hunter2hunter2"}, {"B": "b", "C": "c"})
    assert "KEY" not in held["environment"]
    assert [name for name in ("run.json", "plan.json") if "hunter2" in (run.path / name).read_text()] == []
    assert is_queued(run)


def test_a_search_that_was_removed_ends_its_trials(home: Path) -> None:
    run, _ = submitted(home, SEARCH)
    shutil.rmtree(home / "sweeps")
    with pytest.raises(StoreError, match=r"search\.json can't be used: No such file"):
        give_values(home, run)


def test_a_trial_without_values_is_not_repeated_as_if_it_had_some(home: Path) -> None:
    run, other = submitted(home, SEARCH)
    with pytest.raises(UsageError, match="has no values yet, because its search chooses them"):
        prepare(home, Request("", "", again=other.run_id))
    assert prepare(home, Request("", "", again=other.run_id, args=("--x=0.5",))).repeats is not None
    give_values(home, run)
    assert prepare(home, Request("", "", again=run.run_id)).loaded.job.args[0].startswith("--x=")
