"""Others' checkpoints, as torch and safetensors write them: found by step, and never when torn."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.distributed import checkpoint as dcp

from orchestrator.protocol.checkpoint_formats import Format, Saved, find_saved, is_whole

WEIGHTS = {"weight": torch.arange(100.0), "bias": torch.zeros(3)}


def hugging_face(folder: Path, step: int) -> Path:
    """A folder as Hugging Face's Trainer lays it, its weights in two shards."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    for number, name in enumerate(WEIGHTS):
        save_file({name: WEIGHTS[name]}, path / f"model-{number}.safetensors")
    index = {name: f"model-{number}.safetensors" for number, name in enumerate(WEIGHTS)}
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    torch.save({"state": 1}, path / "optimizer.pt")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))
    return path


def lightning(folder: Path, step: int) -> Path:
    path = folder / "lightning_logs/version_0/checkpoints" / f"epoch=3-step={step}.ckpt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"global_step": step, "state_dict": WEIGHTS}, path)
    return path


def distributed(folder: Path, step: int) -> Path:
    path = folder / f"dcp/step-{step}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is one process
        dcp.save({"model": WEIGHTS}, checkpoint_id=path, no_dist=True)
    return path


def deepspeed(folder: Path, step: int) -> Path:
    """A folder as DeepSpeed lays it: a tag with the states of two ranks, and `latest` beside it."""
    path = folder / f"ds/global_step{step}"
    path.mkdir(parents=True)
    torch.save({"module": WEIGHTS}, path / "mp_rank_00_model_states.pt")
    for rank in range(2):
        torch.save({"optimizer": 1}, path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (path.parent / "latest").write_text(path.name)
    return path


def plain(folder: Path, step: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(WEIGHTS, folder / f"model_{step}.pt")
    return folder / f"model_{step}.pt"


WRITERS = {
    Format.HF: hugging_face, Format.LIGHTNING: lightning, Format.DCP: distributed, Format.DEEPSPEED: deepspeed,
    Format.FILES: plain,
}  # fmt: skip


@pytest.fixture(params=WRITERS, ids=str)
def kind(request: pytest.FixtureRequest) -> Format:
    return Format(request.param)


def found(folder: Path) -> list[tuple[str, int, str]]:
    return sorted((each.format, each.step, os.path.relpath(each.path, folder)) for each in find_saved([str(folder)]))


def test_each_framework_s_checkpoints_are_found_with_their_steps(tmp_path: Path, kind: Format) -> None:
    paths = {step: WRITERS[kind](tmp_path / "out", step) for step in (100, 200)}
    assert found(tmp_path) == [(kind, step, str(path.relative_to(tmp_path))) for step, path in paths.items()]


def test_a_torn_one_never_counts(tmp_path: Path, kind: Format) -> None:
    path = WRITERS[kind](tmp_path, 100)
    weights = path if path.is_file() else max(path.iterdir(), key=lambda each: each.name.endswith((".pt", ".metadata")))
    whole = weights.read_bytes()
    for size in (0, *([1, len(whole) // 2, len(whole) - 1] if kind is not Format.DCP else [])):
        weights.write_bytes(whole[:size])
        assert found(tmp_path) == [], size
    weights.write_bytes(whole)
    assert [step for _, step, _ in found(tmp_path)] == [100]


@pytest.mark.parametrize(
    "tear",
    [
        lambda path: (path / "trainer_state.json").unlink(),
        lambda path: (path / "trainer_state.json").write_text('{"global_step": 1'),
        lambda path: (path / "trainer_state.json").write_text('{"global_step": 99}'),
        lambda path: (path / "model-1.safetensors").unlink(),
        lambda path: (path / "model-1.safetensors").write_bytes((path / "model-1.safetensors").read_bytes()[:-1]),
        lambda path: (path / "model.safetensors.index.json").write_text("{"),
    ],
)
def test_hugging_face_s_folder_counts_only_whole(tmp_path: Path, tear: Callable[[Path], object]) -> None:
    path = hugging_face(tmp_path, 100)
    tear(path)
    assert found(tmp_path) == []


def test_what_came_with_the_code_or_is_nobody_s_checkpoint_is_left_out(tmp_path: Path) -> None:
    old = hugging_face(tmp_path / "pretrained", 900)
    for path in old.iterdir():
        os.utime(path, (1, 1))
    plain(tmp_path / "data", 1)
    plain(tmp_path / "env/lib", 1)
    (tmp_path / "env/pyvenv.cfg").touch()
    plain(tmp_path / ".cache", 1)
    (tmp_path / "elsewhere").symlink_to(old)
    (tmp_path / "log.txt").write_text("step 1000")
    assert find_saved([str(tmp_path), "", str(tmp_path / "missing")], since=1000.0) == []
    assert [each.step for each in find_saved([str(tmp_path)])] == [900]


def test_a_folder_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    path = plain(tmp_path, 7)
    assert find_saved([str(tmp_path), str(tmp_path)]) == [Saved(Format.FILES, str(path), 7, path.stat().st_mtime)]


@given(st.binary(max_size=200), st.sampled_from((".pt", ".safetensors", ".bin", ".npz", ".ckpt")))
def test_no_contents_make_it_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(data)
    assert isinstance(is_whole(str(path)), bool)
    header = len(data).to_bytes(8, "little") + data
    path.write_bytes(header)
    assert isinstance(is_whole(str(path)), bool)
