"""A checkpoint is whole or it is refused, with a sentence."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading

import pytest
import torch

from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT, MANIFEST, STATE, Manifest
from orchestrator.protocol.checkpoints.checksum import VARIABLE
from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.checkpoint.resume import find
from orchestrator.training.errors import CheckpointError, UserError
from orchestrator.training.options import read_places
from tests.patience import PATIENCE
from tests.unit.training.reads import reads_at_most

STATE_OF = {step: {"weights": torch.full((1000,), float(step)), "step": step} for step in range(10)}


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of the steps 1, 2 and 3."""
    for step in (1, 2, 3):
        checkpoints.save(tmp_path / "ckpt", STATE_OF[step], Manifest(step=step, epoch=step, metric={"accuracy": 0.5}))
    return tmp_path / "ckpt"


def newest_step(folder, said=None):
    found = checkpoints.newest(folder, report=(said if said is not None else []).append)
    return found.step if found else None


def test_what_is_saved_is_loaded(folder):
    state, manifest = checkpoints.load(folder / "step_00000003")
    assert torch.equal(state["weights"], STATE_OF[3]["weights"])
    assert (manifest.step, manifest.epoch, manifest.metric) == (3, 3, {"accuracy": 0.5})
    assert manifest.files[STATE]["bytes"] == (folder / "step_00000003" / STATE).stat().st_size
    assert [each.problem for each in checkpoints.listing(folder)] == [None] * 3
    assert sorted(path.name for path in folder.iterdir()) == [f"step_0000000{step}" for step in (1, 2, 3)]


def test_with_sha256_alone_every_version_reads_it(folder, monkeypatch):
    monkeypatch.setenv(VARIABLE, "sha256")
    path = checkpoints.save(folder, STATE_OF[4], Manifest(step=4))
    values = json.loads((path / MANIFEST).read_text())
    assert (values["format"], set(values["files"][STATE])) == (1, {"sha256", "bytes"})
    assert checkpoints.load(path)[0]["step"] == 4
    flip(path / STATE)
    with pytest.raises(CheckpointError, match=r"state\.pt does not match its checksum"):
        checkpoints.load(path)


def test_what_this_python_cant_verify_is_neither_loaded_nor_passed_over(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "blake3", None)
    said = r"step_00000003 can't be verified: the checkpoint was hashed with blake3, which this Python does not have: "
    with pytest.raises(CheckpointError, match=said):
        checkpoints.newest(folder)
    with pytest.raises(CheckpointError, match=said):
        checkpoints.load(folder / "step_00000003")
    assert checkpoints.newest(folder, run="mine") is None  # others' are not to be read
    checkpoints.save(folder, STATE_OF[5], Manifest(step=5))
    assert newest_step(folder) == 5


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("name", [STATE, MANIFEST, COMMIT])
@pytest.mark.parametrize("damage", [flip, truncate, os.unlink, lambda path: path.write_bytes(b"")])
def test_any_damage_is_found_and_the_one_before_is_taken(folder, name, damage):
    if (name, damage) == (COMMIT, truncate):
        damage = flip  # COMMIT ends in a newline that means nothing
    damage(folder / "step_00000003" / name)
    said: list[str] = []
    assert newest_step(folder, said) == 2
    assert len(said) == 1
    assert "step_00000003" in said[0]
    with pytest.raises(CheckpointError, match="step_00000003"):
        checkpoints.load(folder / "step_00000003")


def test_files_of_two_steps_are_not_mixed(folder):
    shutil.copy(folder / "step_00000002" / STATE, folder / "step_00000003" / STATE)
    assert newest_step(folder) == 2
    shutil.rmtree(folder / "step_00000003")
    shutil.copytree(folder / "step_00000001", folder / "step_00000003")
    assert newest_step(folder) == 2


def test_without_the_newest_the_one_before_is_taken(folder):
    shutil.rmtree(folder / "step_00000003")
    assert newest_step(folder) == 2


@pytest.mark.parametrize(
    "manifest", [b"[]", b"{}", b"{", b"\xff", b'{"step": 1, "files": {"../x": {}}}', b'{"new": 1}']
)
def test_a_foreign_manifest_is_a_sentence(folder, manifest):
    path = folder / "step_00000003"
    (path / MANIFEST).write_bytes(manifest)
    (path / COMMIT).write_text(hashlib.sha256(manifest).hexdigest())
    with pytest.raises(CheckpointError):
        checkpoints.load(path)
    assert newest_step(folder) == 2


def test_what_is_no_plain_value_is_not_loaded(tmp_path):
    path = checkpoints.save(tmp_path, {"surprise": object}, Manifest(step=1))
    with pytest.raises(CheckpointError, match="can't be loaded"):
        checkpoints.load(path)


def test_older_ones_go_only_when_the_new_one_is_whole(folder):
    checkpoints.save(folder, STATE_OF[4], Manifest(step=4), keep=2)
    assert [each.step for each in checkpoints.listing(folder)] == [3, 4]
    path = checkpoints.write(folder, STATE_OF[5], Manifest(step=5))
    truncate(path / STATE)
    with pytest.raises(CheckpointError, match="Older checkpoints are kept"):
        checkpoints.prune(folder, path, keep=1)
    assert [each.step for each in checkpoints.listing(folder)] == [3, 4, 5]


def test_a_save_reads_nothing_back(tmp_path):
    weights = torch.zeros(2_000_000)
    with reads_at_most(weights.nbytes // 4):
        path = checkpoints.save(tmp_path, {"weights": weights}, Manifest(step=1))
    assert checkpoints.check(path).problem is None


def test_a_step_can_be_saved_again(folder):
    checkpoints.save(folder, STATE_OF[7], Manifest(step=3))
    assert checkpoints.load(folder / "step_00000003")[0]["step"] == 7
    assert len(list(folder.iterdir())) == 3


def test_leftovers_of_a_dead_writer_are_cleaned(folder):
    ended = subprocess.Popen(["true"])
    ended.wait()
    host = checkpoints.socket.gethostname()
    dead, alive = (folder / f".tmp-step_00000009-{pid}-abcd@{host}" for pid in (ended.pid, os.getppid()))
    dead.mkdir()
    alive.mkdir()
    # A writer that died between its two renames has put the good one aside.
    (folder / "step_00000003").rename(folder / f".old-step_00000003-{ended.pid}-abcd@{host}")
    assert checkpoints.clean(folder) == [dead]
    assert alive.exists()
    assert newest_step(folder) == 3


def test_the_temporary_folder_of_a_failed_save_is_removed(tmp_path):
    with pytest.raises(TypeError):
        checkpoints.write(tmp_path, {"lock": threading.Lock()}, Manifest(step=1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_fails_the_save_and_nothing_else(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], check=False, timeout=PATIENCE
    )
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        checkpoints.save(tmp_path, STATE_OF[1], Manifest(step=1))
        with pytest.raises(CheckpointError, match=rf"step_00000002.*{os.strerror(errno.ENOSPC)}"):
            checkpoints.save(tmp_path, {"big": torch.zeros(10**6)}, Manifest(step=2))
        assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]
        assert newest_step(tmp_path) == 1
    finally:
        subprocess.run(["umount", tmp_path], check=True, timeout=PATIENCE)


def places(folder, resume, **extra):
    return read_places({"ORCH_CHECKPOINT_DIR": str(folder), "ORCH_RESUME": str(resume), **extra})


def test_where_to_resume_from(folder, tmp_path):
    empty = tmp_path / "empty"
    for case, expected in [
        (places(folder, "auto"), folder / "step_00000003"),
        (places(empty, "auto"), None),
        (places(folder, "never"), None),
        (places(folder, "never", ORCH_ATTEMPT="1"), folder / "step_00000003"),
        (places(folder, "never", ORCH_ATTEMPT="1", ORCH_RUN_ID="another"), None),
        (places(empty, folder), folder / "step_00000003"),
        (places(empty, folder / "step_00000001"), folder / "step_00000001"),
    ]:
        assert find(case, print) == expected
    own = tmp_path / "own"
    checkpoints.save(own, STATE_OF[1], Manifest(step=1))
    assert find(places(own, folder), print) == own / "step_00000001"


def test_a_resume_point_that_is_none_is_a_users_error(folder, tmp_path):
    with pytest.raises(UserError, match=r"no checkpoint to resume from in .*nowhere"):
        find(places(tmp_path / "own", tmp_path / "nowhere"), print)
    flip(folder / "step_00000001" / STATE)
    with pytest.raises(UserError, match=r"step_00000001 is corrupt"):
        find(places(tmp_path / "own", folder / "step_00000001"), print)


def test_the_manifest_is_plain_json(folder):
    values = json.loads((folder / "step_00000001" / MANIFEST).read_text())
    assert values["format"] == 2
    assert set(values["files"]) == {STATE}
    assert set(values["files"][STATE]) == {"blake3", "bytes"}
