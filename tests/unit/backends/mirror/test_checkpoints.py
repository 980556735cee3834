"""Checkpoints are copied whole or not at all, however often the copy is interrupted, and only what they name."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
from pathlib import Path

import blake3
import pytest

from orchestrator.backends.mirror.checkpoints import bring_checkpoint, bring_newest
from orchestrator.backends.mirror.send import give_checkpoint
from orchestrator.errors import BackendError
from orchestrator.protocol.checkpoints.checkpoint_dir import BadCheckpointError
from orchestrator.runs.store import RunDir
from tests.machines import FakeMachine


def checkpoint(folder: Path, step: int, content: bytes, algorithm: str = "sha256", **metric: float) -> Path:
    path = folder / f"step_{step:08}"
    path.mkdir(parents=True)
    (path / "state.pt").write_bytes(content)
    digest = (blake3.blake3 if algorithm == "blake3" else hashlib.sha256)(content).hexdigest()
    files = {"state.pt": {"bytes": len(content), algorithm: digest}}
    values = {"format": 1 if algorithm == "sha256" else 2, "step": step, "files": files, "metric": metric}
    manifest = json.dumps(values).encode()
    (path / "manifest.json").write_bytes(manifest)
    (path / "COMMIT").write_text(hashlib.sha256(manifest).hexdigest() + "\n")
    return path


@pytest.mark.parametrize("algorithm", ["sha256", "blake3"])
def test_an_interrupted_checkpoint_is_continued_and_never_seen_half(tmp_path: Path, algorithm: str) -> None:
    content = os.urandom((9 << 20) + 1)
    source, target = checkpoint(tmp_path / "there", 7, content, algorithm), tmp_path / "here" / "step_00000007"
    for calls in (3, 6):
        with pytest.raises(BackendError):
            bring_checkpoint(FakeMachine(left=calls), str(source), target)
        assert not (target / "COMMIT").exists()
    assert bring_checkpoint(FakeMachine(), str(source), target)
    assert (target / "state.pt").read_bytes() == content
    assert sorted(path.name for path in target.iterdir()) == ["COMMIT", "manifest.json", "state.pt"]
    back = tmp_path / "back" / target.name
    give_checkpoint(FakeMachine(), target, str(back))
    assert {path.name: path.read_bytes() for path in back.iterdir()} == {
        path.name: path.read_bytes() for path in source.iterdir()
    }


def test_what_cant_be_verified_here_is_not_brought_and_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = checkpoint(tmp_path / "there", 7, b"weights", "blake3"), tmp_path / "here" / "step_00000007"
    monkeypatch.setitem(sys.modules, "blake3", None)
    with pytest.raises(BackendError, match="which this Python does not have: pip install blake3") as caught:
        bring_checkpoint(FakeMachine(), str(source), target)
    assert not caught.value.transient
    assert not (target / "COMMIT").exists()


@pytest.mark.parametrize("algorithm", ["sha256", "blake3"])
@pytest.mark.parametrize("damage", ["state.pt", "manifest.json", "COMMIT"])
def test_a_damaged_checkpoint_is_not_brought(tmp_path: Path, damage: str, algorithm: str) -> None:
    source, target = checkpoint(tmp_path / "there", 7, b"weights", algorithm), tmp_path / "here" / "step_00000007"
    data = bytearray((source / damage).read_bytes())
    data[3] ^= 1
    (source / damage).write_bytes(data)
    with pytest.raises(BadCheckpointError):
        bring_checkpoint(FakeMachine(), str(source), target)
    assert not (target / "COMMIT").exists()


@pytest.mark.parametrize("name", ["../../evil", "..", "/evil", "COMMIT", "manifest.json", "a/b", ""])
def test_a_checkpoint_that_names_files_elsewhere_is_not_brought(tmp_path: Path, name: str) -> None:
    source = checkpoint(tmp_path / "there", 7, b"weights")
    files = {name: {"bytes": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}}
    manifest = json.dumps({"format": 1, "step": 7, "files": files}).encode()
    (source / "manifest.json").write_bytes(manifest)
    (source / "COMMIT").write_text(hashlib.sha256(manifest).hexdigest())
    with pytest.raises(BadCheckpointError):
        bring_checkpoint(FakeMachine(), str(source), tmp_path / "here" / "step_00000007")
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("manifest", [b"[]", b"{", b'{"step": 7, "files": {"a": 3}}', b'{"files": {}}'])
def test_a_manifest_of_another_kind_is_no_checkpoint(tmp_path: Path, manifest: bytes) -> None:
    source = checkpoint(tmp_path / "there", 7, b"weights")
    (source / "manifest.json").write_bytes(manifest)
    (source / "COMMIT").write_text(hashlib.sha256(manifest).hexdigest())
    with pytest.raises(BadCheckpointError):
        bring_checkpoint(FakeMachine(), str(source), tmp_path / "step_00000007")


def test_a_link_in_a_checkpoint_is_not_followed(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "there", 7, b"weights")
    (source / "state.pt").rename(tmp_path / "elsewhere")
    (source / "state.pt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadCheckpointError):
        bring_checkpoint(FakeMachine(), str(source), tmp_path / "here" / "step_00000007")


def test_a_disk_without_room_here_is_said_and_what_came_is_gone_on_from(tmp_path: Path) -> None:
    content = os.urandom(5 << 20)
    source, target = checkpoint(tmp_path / "there", 7, content), tmp_path / "step_00000007"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, hard))  # no file can grow beyond that
    try:
        with pytest.raises(BackendError, match=r"partial: File too large"):
            bring_checkpoint(FakeMachine(), str(source), target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.stat().st_size for path in target.iterdir()] == [3 << 20]
    assert bring_checkpoint(FakeMachine(), str(source), target)
    assert (target / "state.pt").read_bytes() == content


def test_the_copy_that_was_cut_off_and_has_no_original_any_more_does_not_stay(tmp_path: Path) -> None:
    run, there = RunDir(tmp_path / "here"), tmp_path / "there"
    whole = checkpoint(there, 9, b"nine")
    torn = checkpoint(run.path / "checkpoints", 7, b"seven")
    (torn / "COMMIT").unlink()
    bring_newest(run, FakeMachine(), str(there), [whole.name], most=1)
    assert torn.exists()  # while the run goes on, its copy may be gone on with
    bring_newest(run, FakeMachine(), str(there), [whole.name])
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == [whole.name]
    assert (run.path / "checkpoints" / whole.name / "COMMIT").exists()


def test_the_copies_here_are_the_newest_and_the_best(tmp_path: Path) -> None:
    run, there = RunDir(tmp_path / "here"), tmp_path / "there"
    run.path.mkdir()
    task = {"checkpoint_keep": 1, "checkpoint_best": "wer", "checkpoint_better": "lower"}
    (run.path / "plan.json").write_text(json.dumps({"tasks": [task]}))
    steps = []
    for step, wer in ((1, 0.5), (2, 0.1), (3, 0.4)):
        steps.append(checkpoint(there, step, b"x", wer=wer).name)
        bring_newest(run, FakeMachine(), str(there), steps[-1:], most=1)
    assert sorted(path.name for path in (run.path / "checkpoints").iterdir()) == ["step_00000002", "step_00000003"]
    bring_newest(run, FakeMachine(), str(there), steps)
    assert sorted(path.name for path in (run.path / "checkpoints").iterdir()) == ["step_00000002", "step_00000003"]


def test_another_save_of_a_step_is_not_committed_while_it_replaces_the_copy(tmp_path: Path) -> None:
    first, second = (checkpoint(tmp_path / name, 7, os.urandom(3 << 20)) for name in ("first", "second"))
    target = tmp_path / "here" / "step_00000007"
    bring_checkpoint(FakeMachine(), str(first), target)
    with pytest.raises(BackendError):
        bring_checkpoint(FakeMachine(left=3), str(second), target)
    assert not (target / "COMMIT").exists()
    landed = bring_checkpoint(FakeMachine(), str(second), target)
    assert [each.is_known for each in landed] == [False] * 3
    assert (target / "state.pt").read_bytes() == (second / "state.pt").read_bytes()
