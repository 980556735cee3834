"""Stop a training, go on with it elsewhere, and end where an unbroken one ends."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import torch

from orchestrator.operations.runs import cancel, wait
from orchestrator.runs.files.logs import beat_of
from orchestrator.runs.store import RunDir
from orchestrator.supervisor.reconcile import state_of
from orchestrator.training.checkpoint.format import load, newest

from .conftest import Orch

EPOCHS = "job.training.epochs=12"


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    found = newest(run.path / "checkpoints")
    assert found is not None
    state, _ = load(found.path)
    return dict(state["model"])


def test_a_cancelled_run_is_resumed_and_ends_as_an_unbroken_one(orch: Orch) -> None:
    slow = ("digits_ddp", "-p", "local", "--set", EPOCHS, "--set", "job.training.save_every=10")
    first = orch.submit(*slow, "--set", "job.training.global_batch=32")

    def look(_: object) -> None:
        beat = beat_of(first, 0)
        if beat and beat["phase"] == "train" and beat["step"] >= 25:
            cancel(orch.home, first, now=False)  # at once: the whole training lasts a few seconds
            raise StopIteration

    with contextlib.suppress(StopIteration):
        wait(first, look, timeout=200)
    assert state_of(first).state == "cancelled"
    stopped = newest(first.path / "checkpoints")
    assert stopped is not None
    exits = orch.events(first, "rank_exit")
    assert [event["code"] for event in exits] == [95, 95], exits
    assert 25 <= stopped.step < 540

    resumed = orch("submit", *slow, "--set", "job.training.global_batch=32", "--resume", first.run_id, "-f")
    assert resumed.code == 0, resumed.err
    second = orch.run()
    assert second.run_id != first.run_id
    metrics = [json.loads(line) for line in (second.path / "metrics.jsonl").read_text().splitlines()]
    assert min(line["step"] for line in metrics) >= stopped.step

    unbroken = orch("submit", *slow, "--set", "job.training.global_batch=32", "-f")
    assert unbroken.code == 0
    expected, found = weights(orch.run()), weights(second)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name


def test_a_run_is_resumed_on_another_shape(orch: Orch) -> None:
    few = ("digits_ddp", "--set", "job.training.epochs=2")
    assert orch("submit", *few, "-p", "local", "-f").code == 0
    first = orch.run()
    more = ("digits_ddp", "--set", "job.training.epochs=4")
    done = orch("submit", *more, "-p", "local-2x2", "--resume", "last", "-f")
    assert done.code == 0, done.err
    result = json.loads((orch.run().path / "result.json").read_text())
    assert (result["step"], result["world_size"]) == (60, 4)
    assert json.loads((first.path / "result.json").read_text())["step"] == 30


def test_resume_without_a_checkpoint_is_refused(orch: Orch) -> None:
    assert orch("submit", "hello", "-p", "local", "-f").code == 0
    before = len(list(Path(orch.home / "runs").iterdir()))
    refused = orch("submit", "digits_ddp", "-p", "local", "--resume", "last")
    assert refused.code == 2
    assert "left no checkpoint" in refused.err
    assert len(list(Path(orch.home / "runs").iterdir())) == before


def test_bf16_learns_as_well(orch: Orch) -> None:
    done = orch("submit", "digits_ddp", "-p", "local", "--set", "job.training.precision=bf16", "-f")
    assert done.code == 0, done.err
    result = json.loads((orch.run().path / "result.json").read_text())
    assert result["accuracy"] > 0.9
    assert {value.dtype for value in weights(orch.run()).values()} == {torch.float32}
