"""Stop a training, go on with it elsewhere, and end where an unbroken one ends."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch

from orchestrator.looking.run import wait
from orchestrator.looking.state import state_of
from orchestrator.operations.runs import cancel
from orchestrator.runs.files.logs import beat_of
from orchestrator.runs.store import RunDir
from orchestrator.training.checkpoint.format import load, newest
from tests.patience import PATIENCE

from .conftest import WARM, Orch
from .programs.ranks import PROGRAMS

# A task whose steps last as long as the environment says.
TASK = (
    (PROGRAMS / "small.py").read_text()
    + """
import time
_loss = loss

def loss(outputs, targets):
    time.sleep(float(os.environ["PAUSE"]))
    return _loss(outputs, targets)
"""
)
JOB = (
    "training: {task: small.py, steps: 120, save_every: 10, log_every: 10, global_batch: 12}\nenv: {PAUSE: null}\n"
    + WARM
)


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    found = newest(run.path / "checkpoints")
    assert found is not None
    state, _ = load(found.path)
    return dict(state["model"])


def test_a_cancelled_run_is_resumed_on_another_shape(orch: Orch, project) -> None:
    """That weights are those of an unbroken training is shown in test_training_strategies.py."""
    orch, folder = orch.with_torch, project(small_py=TASK, small_yaml=JOB)
    job = str(folder / "small.yaml")
    first = orch.submit(job, "-p", "local", "--env", "PAUSE=0.1")

    def look(_: object) -> None:
        beat = beat_of(first, 0)
        if beat and beat["phase"] == "train" and beat["step"] >= 15:
            cancel(orch.home, first, now=False)
            raise StopIteration

    with contextlib.suppress(StopIteration):
        wait(first, look, timeout=PATIENCE)
    assert state_of(first).state == "cancelled"
    stopped = newest(first.path / "checkpoints")
    assert stopped is not None
    exits = orch.events(first, "rank_exit")
    assert [event["code"] for event in exits] == [95, 95], exits
    assert 15 <= stopped.step < 120

    again = ("-p", "local", "--nproc-per-node", "3", "--env", "PAUSE=0", "--resume", "last", "-f")
    resumed = orch("submit", job, *again)
    assert resumed.code == 0, resumed.err
    second = orch.run()
    assert second.run_id != first.run_id
    metrics = [json.loads(line) for line in (second.path / "metrics.jsonl").read_text().splitlines()]
    assert min(line["step"] for line in metrics) >= stopped.step
    result = json.loads((second.path / "result.json").read_text())
    assert (result["step"], result["world_size"]) == (120, 3)
    assert newest(first.path / "checkpoints") == stopped


def test_resume_without_a_checkpoint_is_refused(orch: Orch) -> None:
    assert orch("submit", "hello", "-p", "local", "-f").code == 0
    before = len(list(Path(orch.home / "runs").iterdir()))
    refused = orch("submit", "digits_ddp", "-p", "local", "--resume", "last")
    assert refused.code == 2
    assert "left no checkpoint" in refused.err
    assert len(list(Path(orch.home / "runs").iterdir())) == before


@pytest.mark.full("tests/local/test_training_strategies.py::test_sixteen_bits_come_near")
def test_bf16_learns_as_well(orch: Orch) -> None:
    done = orch.with_torch("submit", "digits_ddp", "-p", "local", "--set", "job.training.precision=bf16", "-f")
    assert done.code == 0, done.err
    result = json.loads((orch.run().path / "result.json").read_text())
    assert result["accuracy"] > 0.9
    assert {value.dtype for value in weights(orch.run()).values()} == {torch.float32}
