"""No tracker is told a secret of a run: not as a parameter, as the name of a metric, or in the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.operations.tensorboard import lay_out
from orchestrator.outcome.verdict import Cause, Outcome, Verdict
from orchestrator.runs.outbox import OUTBOX, SECRETS
from orchestrator.runs.state import Ending
from orchestrator.runs.store import RunDir, create_run
from orchestrator.trackers import mlflow, wandb
from orchestrator.trackers.feed import Feed
from orchestrator.trackers.progress import FOLDER, MLFLOW, TENSORBOARD, WANDB, progress_of

ANSWERS: dict[str, dict[str, Any]] = {
    "experiments/get-by-name": {"experiment": {"experiment_id": "1"}}, "runs/create": {"run": {"info": {"run_id": "r"}}}
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run that has ended, with a secret of its shell and one of its plan wherever a tracker looks."""
    both = "canary-of-the-shell canary-of-the-plan"
    job = {"script": "x.py", "args": ["--note", both, "--api-key", "canary-arg"], "secrets": ["PIN"]}
    run = create_run(tmp_path, "a-bcdefg", {"name": "a", "created": 1.0, "job": job, "job_file": f"/x/{both}.yaml"})
    run.write("plan.json", {"secret_names": ["PIN"], "tasks": [{"env": {"HF_TOKEN": "canary-of-the-plan"}}]})
    variables = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_EXPERIMENT_NAME": both}
    run.write(SECRETS, {"PIN": "canary-of-the-shell", **variables}, private=True)
    line = {"kind": "train", "step": 1, "loss": 0.5, f"of {both}": 1.0}
    (run.path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    run.write("result.json", {f"of {both}": 2.0})
    run.write("verdict.json", Ending(Verdict(Outcome.FAILED, Cause.USER_ERROR, f"it was {both}"), 2.0).to_json())
    (run.path / OUTBOX).mkdir()
    return run


def test_no_event_file_has_a_secret(run: RunDir, tmp_path: Path) -> None:
    lay_out([run], tmp_path / "board")
    assert Feed(run, TENSORBOARD).deliver() == ""
    assert progress_of(run, TENSORBOARD).is_done
    written = [*(run.path / FOLDER / TENSORBOARD).iterdir(), *(tmp_path / "board" / run.run_id).iterdir()]
    assert len(written) == 2
    for path in written:
        assert b"train/of *** ***" in path.read_bytes()
        assert b"canary" not in path.read_bytes()


def test_no_request_to_mlflow_has_a_secret(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(_: object, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        asked.append(f"{path} {json.dumps(body)}")
        return ANSWERS.get(path.partition("?")[0], {})

    monkeypatch.setattr(mlflow.Server, "call", answer)
    assert Feed(run, MLFLOW).deliver() == ""
    assert progress_of(run, MLFLOW).is_done
    assert "train/of ___ ___" in "".join(asked)
    assert [each for each in asked if "canary" in each] == []


def test_nothing_that_wandb_writes_has_a_secret(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def write(self: wandb.Wandb, lines: list[Any]) -> None:
        told.extend(lines)
        (self.run.path / FOLDER / ".wandb" / "wandb").mkdir()

    monkeypatch.setattr(wandb.Wandb, "_write", write)
    assert Feed(run, WANDB).deliver() == ""
    assert progress_of(run, WANDB).is_done
    assert told[1]["train/of *** ***"] == 1.0
    assert "canary" not in json.dumps(told)
