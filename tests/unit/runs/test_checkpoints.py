"""The controlling side reads checkpoints as the training library does, without torch."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.render.results import checkpoints_page
from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT, MANIFEST, STATE, CheckpointState
from orchestrator.protocol.layout import output_folder
from orchestrator.runs.files.checkpoints import Checkpoint, all_of, best, check, checkpoint_folder, listing, unusable
from orchestrator.runs.store import RunDir
from orchestrator.training.checkpoint import format as writer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of the steps 1, 2 and 3."""
    for step, accuracy in ((1, 0.7), (2, 0.9), (3, 0.8)):
        manifest = writer.Manifest(step=step, epoch=step, world_size=4, metric={"accuracy": accuracy, "loss": 1.0})
        writer.write(tmp_path / "ckpt", {"step": step, "text": "x" * 5000}, manifest)
    return tmp_path / "ckpt"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def mix(path: Path) -> None:
    shutil.copy(path.parents[1] / "step_00000002" / path.name, path)


def rename_of_another(path: Path) -> None:
    shutil.rmtree(path.parent)
    shutil.copytree(path.parents[1] / "step_00000001", path.parent)


def newest_deleted(path: Path) -> None:
    shutil.rmtree(path.parent)


def whole(path: Path) -> None:
    pass


def same_as_the_writers(folder: Path) -> list[Checkpoint]:
    found = listing(folder, verify=True)
    expected = writer.listing(folder)
    assert [(each.path, each.step, each.is_whole) for each in found] == [
        (each.path, each.step, each.problem is None) for each in expected
    ]
    for mine, theirs in zip(found, expected, strict=True):
        if theirs.manifest is None:
            assert theirs.problem is not None
            if "can't be read" not in theirs.problem and "format" not in theirs.problem:
                assert mine.verdict in theirs.problem or "mixed up" in mine.reason + theirs.problem
        else:
            assert (mine.epoch, mine.world_size, mine.metric, mine.time, mine.run) == (
                theirs.manifest.epoch, theirs.manifest.world_size, theirs.manifest.metric, theirs.manifest.time,
                theirs.manifest.run,
            )  # fmt: skip
    return found


@pytest.mark.parametrize("name", [STATE, MANIFEST, COMMIT])
@pytest.mark.parametrize("damage", [whole, flip, truncate, os.unlink, mix, rename_of_another, newest_deleted])
def test_both_readers_agree(folder: Path, name: str, damage: Callable[[Path], None]) -> None:
    damage(folder / "step_00000003" / name)
    found = same_as_the_writers(folder)
    assert [each.verdict for each in found[:2]] == ["ok"] * 2
    if damage is newest_deleted:
        assert len(found) == 2
    elif damage is whole:
        assert found[2].is_whole
    else:
        assert not found[2].is_whole, found[2]
        assert found[2].reason


def test_any_flipped_bit_is_found(folder: Path) -> None:
    chance = random.Random(7)
    for _ in range(100):
        path = folder / "step_00000003" / chance.choice([STATE, MANIFEST, COMMIT])
        before = path.read_bytes()
        content = bytearray(before)
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        state = check(path.parent, verify=True)
        assert not state.is_whole or content.strip() == before.strip()
        path.write_bytes(before)
    assert check(folder / "step_00000003", verify=True).is_whole


def test_what_cant_be_verified_here_is_not_taken_for_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.write(folder, {}, writer.Manifest(step=0))
    monkeypatch.setitem(sys.modules, "blake3", None)
    found = listing(folder, verify=True)
    assert [each.step for each in found] == [0, 1, 2, 3]
    assert {each.verdict for each in found} == {CheckpointState.UNREADABLE}
    assert (
        found[0].reason == "the checkpoint was hashed with blake3, which this Python does not have: pip install blake3"
    )
    assert all(each.is_whole for each in listing(folder, verify=False))


def test_a_quick_look_reads_sizes_only(folder: Path) -> None:
    flip(folder / "step_00000003" / STATE)
    truncate(folder / "step_00000002" / STATE)
    quick = listing(folder, verify=False)
    assert [(each.verdict, each.hashed) for each in quick] == [
        ("ok", False), ("incomplete", False), ("ok", False)
    ]  # fmt: skip
    assert listing(folder, verify=True)[2].verdict == "corrupt"


def test_hidden_siblings_files_and_absent_folders_are_nothing(folder: Path, tmp_path: Path) -> None:
    for kind in ("tmp", "old", "gone"):
        shutil.copytree(folder / "step_00000001", folder / f".{kind}-step_00000009-1-abcd@host")
    (folder / "step_00000008").write_text("a file")
    (folder / "notes").mkdir()
    assert [each.step for each in listing(folder, verify=True)] == [1, 2, 3]
    assert listing(tmp_path / "nothing", verify=True) == []


def test_another_format_and_hostile_manifests_are_refused(folder: Path) -> None:
    import hashlib

    path = folder / "step_00000003"
    manifest = json.loads((path / MANIFEST).read_text())
    for change in (
        {"format": 99}, {"files": {}}, {"files": {"../../etc/passwd": {"sha256": "", "bytes": 1}, STATE: {}}},
        {"step": "3"}, {"files": [1]},
    ):  # fmt: skip
        content = json.dumps(manifest | change).encode()
        (path / MANIFEST).write_bytes(content)
        (path / COMMIT).write_text(hashlib.sha256(content).hexdigest() + "\n")
        assert check(path, verify=True).verdict == "corrupt", change
    for content in (b"[]", b"null", b"{", b"\xff"):
        (path / MANIFEST).write_bytes(content)
        (path / COMMIT).write_text(hashlib.sha256(content).hexdigest())
        assert check(path, verify=True).verdict == "corrupt", content


def test_the_best_by_accuracy_else_by_the_smallest_loss(folder: Path) -> None:
    found = listing(folder, verify=False)
    chosen = best(found)
    assert chosen is not None
    assert (chosen[0].step, chosen[1]) == (2, "accuracy 0.9 is the largest of 3")

    def of(step: int, **metric: float) -> Checkpoint:
        return Checkpoint(Path(f"step_{step:08d}"), step, CheckpointState.COMMITTED, metric=metric)

    chosen = best([of(1, val_loss=0.5), of(2, val_loss=0.2), of(3, val_loss=float("nan")), of(4)])
    assert chosen is not None
    assert (chosen[0].step, chosen[1]) == (2, "val_loss 0.2 is the smallest of 2")
    assert best([of(1), of(2, loss=float("nan"))]) is None
    tie = best([of(1, accuracy=0.5), of(2, accuracy=0.5)])
    assert tie is not None
    assert tie[0].step == 2


def test_where_a_runs_checkpoints_are(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert checkpoint_folder(run) == tmp_path / "checkpoints"
    for planned, expected in (("/data/ckpt", Path("/data/ckpt")), ("here", Path("/code/here"))):
        run.write("plan.json", {"tasks": [{"checkpoint_dir": planned, "code_dir": "/code"}]})
        assert checkpoint_folder(run) == expected


def test_the_page_says_what_is_wrong(folder: Path) -> None:
    flip(folder / "step_00000003" / STATE)
    page = checkpoints_page(listing(folder, verify=True), "ckpt")
    assert page.splitlines()[0].split() == ["STEP", "EPOCH", "SAVED", "SIZE", "METRIC", "RANKS", "VERDICT"]
    assert "step 3 is corrupt: state.pt does not match its checksum" in page
    assert "checksums verified" in page


def test_the_reader_needs_no_torch(tmp_path: Path) -> None:
    loads = "import sys, orchestrator.runs.files.checkpoints, orchestrator.cli.commands.results.checkpoints"
    code = f"{loads}; print({{'torch', 'pydantic'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_files_that_may_be_checkpoints_are_named_if_a_run_has_none(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs/r-1")
    output = Path(output_folder(str(run.path)))
    output.mkdir(parents=True)
    run.write("run.json", {"kind": "ssh"})
    run.write("plan.json", {"tasks": [{"code_dir": "~/.orch/runs/r-1/code"}]})
    (output / "torn.pt").write_bytes(b"PK\x03\x04 torn")
    (output / "my_checkpoint.odd").write_bytes(b"1")
    (output / "checkpoint.log").write_bytes(b"1")
    (output / "out.txt").write_bytes(b"1")
    assert all_of(run) == []
    assert unusable(run) == [
        f"{output}/my_checkpoint.odd has no format that orch knows; if it is a checkpoint, name it in checkpoint.glob",
        f"{output}/torn.pt is not whole, so it is no checkpoint to resume from",
    ]
    page = checkpoints_page([], "F", unusable=unusable(run))
    assert page.splitlines()[0] == "no checkpoint of this run is here"
    assert len(page.splitlines()) == 3
