"""Checkpoints of several files, by a single process: what is hashed, what is refused."""

import errno
import os
import pickle
import resource
from pathlib import Path

import pytest
import torch

from orchestrator.protocol.checkpoints.checkpoint_dir import Manifest
from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.checkpoint import sharded
from orchestrator.training.errors import CheckpointError
from tests.unit.training.reads import reads_at_most

SHARDS = {"model.weight": torch.arange(6.0).reshape(2, 3), "optimizer.0.step": torch.tensor(4.0)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return sharded.write(tmp_path, SHARDS, {"position": 3}, Manifest(step=3))


def test_what_is_written_is_read_and_hashed(path: Path) -> None:
    found = checkpoints.check(path)
    assert found.problem is None
    assert found.manifest is not None
    assert set(found.manifest.files) == {"state.pt", ".metadata", "__0_0.distcp"}
    whole = sharded.read_whole(path)
    assert whole.keys() == SHARDS.keys()
    assert all(torch.equal(whole[name], value) for name, value in SHARDS.items())
    with (path / "__0_0.distcp").open("r+b") as file:
        file.seek(100)
        file.write(b"x")
    assert "__0_0.distcp does not match its checksum" in str(checkpoints.check(path).problem)


def test_files_are_hashed_while_they_are_written(tmp_path: Path) -> None:
    weights = torch.zeros(2_000_000)
    with reads_at_most(weights.nbytes // 4):
        path = sharded.write(tmp_path, {"model.weight": weights}, {}, Manifest(step=1))
    found = checkpoints.check(path)
    assert (found.problem, len(found.manifest.files if found.manifest else ())) == (None, 3)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("owned",)


def test_an_index_can_run_nothing(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (path / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match="an index must not contain"):
        sharded.read_whole(path)
    assert not (tmp_path / "owned").exists()
    (path / ".metadata").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="can't be read"):
        sharded.index(path)
    (path / ".metadata").unlink()
    with pytest.raises(CheckpointError, match="a folder that all nodes share"):
        sharded.index(path)


def test_a_disk_that_refuses_leaves_nothing_behind(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match=os.strerror(errno.EFBIG)):
            sharded.write(tmp_path, {"model.weight": torch.zeros(10_000)}, {}, Manifest(step=1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
