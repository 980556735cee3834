"""Which checkpoints are a run's own: not the code's, another run's, or those of other points of its sweep."""

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


def test_a_working_folder_that_points_of_a_sweep_share_has_nobody_s_own(places: Places, tmp_path: Path) -> None:
    os.rename(places.code_dir, tmp_path / "shared")
    os.symlink(tmp_path / "shared", places.code_dir)
    save(tmp_path / "shared/out/a.ckpt")
    save(Path(places.run_dir, "outputs/b.ckpt"))
    assert list(places.own()) == ["outputs/b.ckpt"]
    assert places.look().changed > 0  # it gets on, whichever point it was


def test_the_glob_is_held_against_the_path_in_each_of_the_folders(places: Places) -> None:
    for name in ("code/out/a.ckpt", "outputs/out/b.ckpt", "outputs/c.ckpt"):
        save(Path(places.run_dir, name))
    sought = Sought(glob="out/*.ckpt")
    assert set(Places(places.run_dir, places.code_dir, places.checkpoints, sought).own()) == {
        "code/out/a.ckpt", "outputs/out/b.ckpt",
    }  # fmt: skip
