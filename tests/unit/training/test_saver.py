"""Saving beside the training: what is on the disk is what was given, whatever is done to it afterwards."""

import threading
from pathlib import Path

import pytest
import torch

from orchestrator.protocol.checkpoints.checkpoint_dir import Manifest
from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.checkpoint.saver import Saver
from orchestrator.training.checkpoint.staging import Staging
from orchestrator.training.options import read_places
from orchestrator.training.progress.heartbeat import HeartbeatFile
from orchestrator.training.progress.report import Reporter
from tests.patience import PATIENCE


@pytest.fixture
def saver(tmp_path: Path):
    """A saver that writes aside, into tmp_path; closed at the end."""
    places = read_places({"ORCH_CHECKPOINT_DIR": str(tmp_path / "saved"), "ORCH_CHECKPOINT_KEEP": "2"})
    report = Reporter(tmp_path / "metrics.jsonl", None, speaks=True, attempt=0)
    made = Saver(places, report, HeartbeatFile(None), aside=True)
    yield made
    made.close()
    report.close()


def test_a_checkpoint_is_of_the_step_at_which_it_was_asked_for(saver: Saver, tmp_path: Path, monkeypatch) -> None:
    weights = torch.zeros(1000)
    may_write = threading.Event()
    write = checkpoints.write
    monkeypatch.setattr(checkpoints, "write", lambda *given: may_write.wait(PATIENCE) and write(*given))
    saver.save({"model": {"w": weights}, "list": [weights, 3], "pair": (1, "x")}, Manifest(step=1))
    weights.fill_(7)  # training goes on, and nothing is on the disk yet
    assert checkpoints.listing(tmp_path / "saved") == []
    may_write.set()
    saver.save({"model": {"w": weights}}, Manifest(step=2))
    saver.close()
    first, second = (checkpoints.load(tmp_path / "saved" / f"step_0000000{step}")[0] for step in (1, 2))
    assert first["model"]["w"].eq(0).all()
    assert (first["list"][1], first["pair"]) == (3, (1, "x"))
    assert first["list"][0].eq(0).all()
    assert second["model"]["w"].eq(7).all()
    assert '"waited"' in (tmp_path / "metrics.jsonl").read_text()


def test_older_checkpoints_go_and_a_disk_that_refuses_ends_nothing(saver: Saver, tmp_path: Path, capsys) -> None:
    for step in (1, 2, 3):
        saver.save({"w": torch.ones(3)}, Manifest(step=step))
    saver.close()
    assert [found.step for found in checkpoints.listing(tmp_path / "saved")] == [2, 3]
    (tmp_path / "saved").rename(tmp_path / "elsewhere")
    (tmp_path / "saved").write_text("no folder")
    saver.save({"w": torch.ones(3)}, Manifest(step=4))
    saver.close()
    assert "could not be written: File exists. Training continues" in capsys.readouterr().err


def test_the_best_by_the_jobs_metric_stays_too(tmp_path: Path) -> None:
    places = read_places({
        "ORCH_CHECKPOINT_DIR": str(tmp_path), "ORCH_CHECKPOINT_KEEP": "1", "ORCH_CHECKPOINT_KEEP_BEST": "fidelity",
        "ORCH_CHECKPOINT_BETTER": "lower",
    })  # fmt: skip
    saver = Saver(places, Reporter(None, None, speaks=False, attempt=0), HeartbeatFile(None))
    for step, value in enumerate((0.5, 0.2, 0.9, 0.4), 1):
        saver.save({"w": torch.ones(3)}, Manifest(step=step, metric={"fidelity": value}))
    saver.close()
    assert [found.step for found in checkpoints.listing(tmp_path)] == [2, 4]


def test_memory_is_taken_once() -> None:
    staging, state = Staging(), {"a": torch.ones(5), "b": [torch.zeros(2, 2)]}
    first = staging.copy(state)
    second = staging.copy({"a": torch.full((5,), 2.0), "b": [torch.zeros(3)]})
    assert second["a"].data_ptr() == first["a"].data_ptr()
    assert second["a"].eq(2).all()
    assert second["b"][0].shape == (3,)
