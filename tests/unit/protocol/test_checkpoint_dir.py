"""What is a committed checkpoint, the newest, and one too many: one answer for every side."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.protocol.checkpoints import checkpoint_dir
from orchestrator.protocol.checkpoints.checkpoint_dir import (
    COMMIT,
    MANIFEST,
    STATE,
    BadCheckpointError,
    CheckpointState,
    Leftover,
    check,
    manifest_of,
    name_of,
)
from orchestrator.protocol.metric import Better, JobMetric

CONTENT = b"weights"
ENTRY = {"sha256": hashlib.sha256(CONTENT).hexdigest(), "bytes": len(CONTENT)}


def manifest(step: int = 3, **values: Any) -> dict[str, Any]:
    return {"step": step, "format": 1, "epoch": 1, "files": {STATE: ENTRY}, **values}


def commit(folder: Path, step: int, **values: Any) -> Path:
    """Write a checkpoint by hand, as another program would."""
    path = folder / name_of(step)
    path.mkdir(parents=True, exist_ok=True)
    content = json.dumps(manifest(step, **values)).encode()
    (path / STATE).write_bytes(CONTENT)
    (path / MANIFEST).write_bytes(content)
    (path / COMMIT).write_text(hashlib.sha256(content).hexdigest() + "\n")
    return path


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_00000003", 3), ("step_123456789", 123456789), ("step_3", None), ("step_0000000x", None),
        (".tmp-step_00000003-1-ab@h", None), ("step_00000003.partial", None), ("", None),
    ],
)  # fmt: skip
def test_names_of_checkpoints(name: str, step: int | None) -> None:
    assert checkpoint_dir.step_of(name) == step
    if step is not None:
        assert name_of(step) == name


def test_the_newest_is_the_one_of_the_highest_step_that_is_committed(tmp_path: Path) -> None:
    for step in (2, 99_999_999, 100_000_000, 30):  # the last name is the longest, not the last of the alphabet
        commit(tmp_path, step)
    (commit(tmp_path, 200_000_000) / COMMIT).unlink()
    (tmp_path / "step_00000007").write_text("a file")
    (tmp_path / "notes").mkdir()
    assert [checkpoint_dir.step_of(name) for name in checkpoint_dir.step_folders(tmp_path)] == [
        2, 30, 99_999_999, 100_000_000, 200_000_000,
    ]  # fmt: skip
    assert checkpoint_dir.committed(tmp_path) == checkpoint_dir.step_folders(tmp_path)[:-1]
    assert checkpoint_dir.newest(tmp_path) == "step_100000000"
    assert checkpoint_dir.newest_step(str(tmp_path)) == 100_000_000


def kept(folder: Path, keep: int, by: JobMetric | None) -> list[int | None]:
    names = checkpoint_dir.committed(folder)
    gone = checkpoint_dir.surplus(names, keep, checkpoint_dir.best_of(folder, names, by))
    return [checkpoint_dir.step_of(name) for name in names if name not in gone]


def test_the_best_stays_beside_the_newest(tmp_path: Path) -> None:
    for step, value in enumerate([0.1, 0.9, 0.5, 0.9, 0.2, 0.3], 1):
        commit(tmp_path, step, metric={"accuracy": value, "loss": value})
    commit(tmp_path, 7)
    commit(tmp_path, 8, metric={"accuracy": float("nan"), "loss": float("nan")})
    assert kept(tmp_path, 2, JobMetric("accuracy")) == [4, 7, 8]  # of equals the newest
    assert kept(tmp_path, 2, JobMetric("loss")) == [1, 7, 8]
    assert kept(tmp_path, 2, JobMetric("loss", Better.HIGHER)) == [4, 7, 8]
    assert kept(tmp_path, 5, JobMetric("accuracy")) == [4, 5, 6, 7, 8]
    assert kept(tmp_path, 2, JobMetric("wer")) == kept(tmp_path, 2, None) == [7, 8]
    (tmp_path / name_of(4) / MANIFEST).write_text("{}")  # what can't be read is not the best
    assert kept(tmp_path, 2, JobMetric("accuracy")) == [2, 7, 8]


def test_of_runs_that_share_a_folder_each_newest_has_its_own_best(tmp_path: Path) -> None:
    for step, (run, value) in enumerate([("a", 0.9), ("a", 0.3), ("b", 0.5), ("b", 0.2), ("b", 0.1)], 1):
        commit(tmp_path, step, run=run, metric={"accuracy": value})
    assert kept(tmp_path, 1, JobMetric("accuracy")) == [1, 3, 5]


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert checkpoint_dir.committed(tmp_path / "nothing") == []
    assert checkpoint_dir.newest(tmp_path / "nothing") is None
    assert checkpoint_dir.newest_step("") is None


@pytest.mark.parametrize(
    ("keep", "gone"), [(1, ["a", "b"]), (2, ["a"]), (3, []), (9, []), (0, ["a", "b"]), (-1, ["a", "b"])]
)
def test_the_newest_is_never_surplus(keep: int, gone: list[str]) -> None:
    assert checkpoint_dir.surplus(["a", "b", "c"], keep) == gone
    assert checkpoint_dir.surplus([], keep) == []


def test_what_is_deleted_is_gone_at_once(tmp_path: Path) -> None:
    path = commit(tmp_path, 3)
    checkpoint_dir.delete(path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        checkpoint_dir.delete(path)


def test_a_temporary_name_says_whose_it_is() -> None:
    name = checkpoint_dir.temporary_name("gone", name_of(3))
    found = checkpoint_dir.leftover_of(name)
    assert found is not None
    assert found == Leftover("gone", name_of(3), os.getpid(), found.host)
    assert name != checkpoint_dir.temporary_name("gone", name_of(3))
    assert checkpoint_dir.step_of(name) is None
    assert checkpoint_dir.leftover_of(name_of(3)) is None


def test_a_whole_one_is_committed(tmp_path: Path) -> None:
    path = commit(tmp_path, 3, metric={"loss": 0.5, "note": "good"}, world_size=4, some_later_field=1)
    found = check(path, verify=True)
    assert (found.state, found.step, found.reason) == (CheckpointState.COMMITTED, 3, "")
    assert found.manifest is not None
    assert (found.manifest.metric, found.manifest.world_size) == ({"loss": 0.5}, 4)
    assert found.commit == hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()


@pytest.mark.parametrize("name", [STATE, MANIFEST, COMMIT])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (commit(tmp_path, 3) / name).unlink()
    found = check(tmp_path / name_of(3), verify=False)
    assert (found.state, found.reason, found.step) == (CheckpointState.INCOMPLETE, f"the checkpoint has no {name}", 3)


def test_what_the_disk_withholds_is_unreadable_rather_than_damaged(tmp_path: Path) -> None:
    path = commit(tmp_path, 3)
    (path / MANIFEST).unlink()
    (path / MANIFEST).mkdir()
    found = check(path, verify=False)
    assert found.state is CheckpointState.UNREADABLE
    assert found.reason == "the checkpoint can't be read: Is a directory"


def test_only_a_full_look_finds_a_flipped_bit(tmp_path: Path) -> None:
    path = commit(tmp_path, 3)
    (path / STATE).write_bytes(b"Weights")
    assert check(path, verify=False).state is CheckpointState.COMMITTED
    assert check(path, verify=True).state is CheckpointState.CORRUPT


def test_a_checkpoint_under_another_ones_name_is_refused(tmp_path: Path) -> None:
    commit(tmp_path, 3).rename(tmp_path / name_of(4))
    found = check(tmp_path / name_of(4), verify=True)
    assert (found.state, found.step) == (CheckpointState.CORRUPT, 4)
    (tmp_path / name_of(4)).rename(tmp_path / "given")
    assert check(tmp_path / "given", verify=True).step == 3


@pytest.mark.parametrize(
    "change",
    [
        {"format": 3}, {"step": "3"}, {"step": True}, {"epoch": "x"}, {"time": None}, {"run": 1}, {"files": {}},
        {"files": [STATE]}, {"files": {STATE: {"bytes": 7}}}, {"files": {STATE: {**ENTRY, "bytes": -1}}},
        {"files": {STATE: {**ENTRY, "sha256": "../x"}}},
        *({"files": {STATE: ENTRY, name: ENTRY}} for name in ("../x", "a/b", "", ".", "..", COMMIT, MANIFEST)),
    ],
)  # fmt: skip
def test_hostile_manifests_are_refused(change: dict[str, Any]) -> None:
    assert manifest_of(json.dumps(manifest())).step == 3
    with pytest.raises(BadCheckpointError) as caught:
        manifest_of(json.dumps({**manifest(), **change}))
    assert caught.value.state is CheckpointState.CORRUPT
    assert caught.value.reason


@pytest.mark.parametrize("content", [b"[]", b"null", b"{", b"\xff", b'"text"', b"3"])
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(BadCheckpointError):
        manifest_of(content)


def test_a_state_is_its_word() -> None:
    assert f"{CheckpointState.INCOMPLETE}" == str(CheckpointState.INCOMPLETE) == "incomplete"
    assert json.dumps({"state": CheckpointState.INCOMPLETE}) == '{"state": "incomplete"}'
    assert all("\n" not in state for state in CheckpointState)


def test_the_reader_loads_the_standard_library_only() -> None:
    loads = "import sys, orchestrator.protocol.checkpoints.checkpoint_dir"
    code = f"{loads}; print({{'torch', 'pydantic', 'click'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
