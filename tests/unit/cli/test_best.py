"""`orch best` and `orch pull --checkpoint best` agree on what is best."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator.cli import orch
from orchestrator.cli.commands.results.best import best
from orchestrator.errors import OrchError
from orchestrator.operations.pull import pull
from orchestrator.runs.run_id import point_id
from orchestrator.runs.store import RunDir, append_lines, create_run, retire, state_root
from orchestrator.runs.sweeps import make_sweep
from orchestrator.training.checkpoint import format as writer
from tests.unit.runs.metric_names import TABLE

SWEEP = "speech-qpcqr9"


def sweep_of_two(metric: object, names: list[str]) -> list[RunDir]:
    """Make a sweep whose first point has 1.0 of everything and whose second has 2.0, as results and checkpoints."""
    root = state_root()
    make_sweep(root, SWEEP, None, {"sweep": SWEEP})
    record = {"kind": "local", "nnodes": 1, "hosts": ["localhost"], "job": {"metric": metric}}
    runs = []
    for index in range(2):
        run = create_run(root, point_id(SWEEP, index), {**record, "run_id": point_id(SWEEP, index)}, indexed=False)
        run.write("verdict.json", {"outcome": "succeeded", "ended": 2.0})
        retire(root, run)
        run.write("result.json", dict.fromkeys(names, index + 1.0))
        runs.append(run)
    append_lines(root / "index", [run.run_id for run in runs])
    return runs


def first(*options: str) -> str:
    ended = CliRunner().invoke(best, [*options, "--json"], catch_exceptions=False, standalone_mode=False)
    rows: list[dict[str, Any]] = json.loads(ended.stdout)
    return str(rows[0]["run_id"])


def test_both_commands_agree_for_every_name(tmp_path: Path) -> None:
    names = [name for name, _ in TABLE]
    runs = sweep_of_two(None, names)
    for name, better in TABLE:
        index = 0 if better == "lower" else 1
        assert first("--metric", name) == runs[index].run_id, name
        made = RunDir(tmp_path / "runs" / f"job-{names.index(name):06}")
        for step in (1, 2):
            manifest = writer.Manifest(step=step, epoch=1, metric={name: float(step)}, run=made.run_id)
            writer.write(made.path / "checkpoints", {"step": step}, manifest)
        assert pull(made, tmp_path / made.run_id, "best").step == index + 1, name


def test_the_job_wins_over_the_name_and_an_option_over_both() -> None:
    runs = [run.run_id for run in sweep_of_two({"name": "loss", "better": "higher"}, ["loss", "wer"])]
    assert first() == first("--metric", "loss") == runs[1]
    assert first("--lower") == runs[0]
    assert first("--metric", "wer") == runs[0]
    assert first("--metric", "wer", "--higher") == runs[1]


def test_without_a_metric_of_the_job_one_must_be_named() -> None:
    sweep_of_two(None, ["loss", "wer"])
    with pytest.raises(OrchError, match=f"the job of {SWEEP} names no metric") as error:
        first()
    assert "they have: loss, wer" in error.value.hint
    assert "--metric" in CliRunner().invoke(orch, ["best", "--help"]).output


def test_a_pull_goes_by_the_metric_of_the_job(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / "job-abc")
    for step, accuracy, wer in ((1, 0.9, 0.3), (2, 0.8, 0.1)):
        manifest = writer.Manifest(step=step, epoch=1, metric={"accuracy": accuracy, "wer": wer}, run=run.run_id)
        writer.write(run.path / "checkpoints", {"step": step}, manifest)
    run.write("run.json", {"job": {"metric": {"name": "wer", "better": None}}})
    pulled = pull(run, tmp_path / "out", "best")
    assert (pulled.step, pulled.choice) == (2, "wer 0.1 is the smallest of 2")


def a_run(run_id: str, **job: object) -> RunDir:
    run = create_run(state_root(), run_id, {"kind": "local", "nnodes": 1, "hosts": ["localhost"], "job": job})
    run.write("verdict.json", {"outcome": "succeeded", "ended": 2.0})
    retire(state_root(), run)
    run.write("result.json", {"loss": float(len(str(job.get("args"))))})
    return run


def test_any_runs_are_ranked_and_what_sets_them_apart_stands_beside_them(tmp_path: Path) -> None:
    one, two, other = (
        a_run(name, name=name, args=args, training={"lr": lr, "seed": 1})
        for name, args, lr in (("train-abcdef", ["--x", "1 2"], 0.1), ("train-ghjkmn", [], 0.2), ("eval-abcdef", [], 3))
    )
    ended = CliRunner().invoke(
        best, [one.run_id, two.run_id, "-m", "loss", "--json"], catch_exceptions=False, standalone_mode=False
    )
    assert [(row["run_id"], row["values"]) for row in json.loads(ended.stdout)] == [
        (two.run_id, {"args": "", "lr": "0.2"}), (one.run_id, {"args": "--x '1 2'", "lr": "0.1"}),
    ]  # fmt: skip
    assert first("--name", "train", "-m", "loss") == two.run_id
    assert first(other.run_id, one.run_id, "-m", "loss") == other.run_id
    with pytest.raises(OrchError, match="no run has the name 'trai'"):
        first("--name", "trai", "-m", "loss")


def test_the_best_of_a_sweep_is_pulled(tmp_path: Path) -> None:
    runs = sweep_of_two({"name": "wer", "better": None}, ["wer", "accuracy"])
    words = ["pull", SWEEP, "--best", "--json", "--to"]
    for index, more in ((0, ()), (1, ("--metric", "accuracy"))):
        ended = CliRunner().invoke(
            orch, [*words, str(tmp_path / str(index)), *more], catch_exceptions=False, standalone_mode=False
        )
        assert json.loads(ended.stdout)["run_id"] == runs[index].run_id
        assert f"{runs[index].run_id} is the best of {SWEEP}" in ended.stderr
    with pytest.raises(OrchError, match="--metric needs --best"):
        CliRunner().invoke(orch, ["pull", "x", "-m", "y"], catch_exceptions=False, standalone_mode=False)
