"""Which checkpoints are a run's own: not the code's, or another run's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from orchestrator.protocol.checkpoints.of_run import Places
from orchestrator.protocol.checkpoints.search import Sought
from orchestrator.protocol.code_baseline import write_baseline


def save(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"global_step": 1}, path)
    return path


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A run whose code has weights, and whose checkpoint.dir has those of a run before it."""
    run, code, outside = tmp_path / "run", tmp_path / "run/code", tmp_path / "mine"
    info = save(code / "pretrained.pt").stat()
    os.utime(save(outside / "earlier.ckpt"), (1e9, 1e9))
    write_baseline(str(code), {"pretrained.pt": [info.st_size, info.st_mtime_ns]})
    return Places(str(run), str(code), str(outside), Sought())


def test_what_was_there_before_is_not_the_run_s(places: Places) -> None:
    assert (places.own(), places.look().changed) == ({}, 0.0)
    for name in ("code/out/a.ckpt", "outputs/b.ckpt"):
        save(Path(places.run_dir, name))
    save(Path(places.checkpoints, "c.ckpt"))
    assert set(places.own()) == {"code/out/a.ckpt", "outputs/b.ckpt", "checkpoints/c.ckpt"}
    assert {name: places.path(name) for name in places.own()} == {
        name: saved.path for name, saved in places.own().items()
    }
    save(Path(places.code_dir, "pretrained.pt"))
    assert "code/pretrained.pt" in places.own()


def test_the_glob_is_held_against_the_path_in_each_of_the_folders(places: Places) -> None:
    for name in ("code/out/a.ckpt", "outputs/out/b.ckpt", "outputs/c.ckpt"):
        save(Path(places.run_dir, name))
    sought = Sought(glob="out/*.ckpt")
    assert set(Places(places.run_dir, places.code_dir, places.checkpoints, sought).own()) == {
        "code/out/a.ckpt", "outputs/out/b.ckpt",
    }  # fmt: skip
