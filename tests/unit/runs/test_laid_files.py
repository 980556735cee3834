"""A run on this machine finds the ignored files of the code folder, and does not change the user's own small files."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import IO

import pytest

from orchestrator.errors import UsageError
from orchestrator.node.server.outputs import baseline, find
from orchestrator.node.system import copying
from orchestrator.protocol.code_baseline import write_baseline
from orchestrator.protocol.outputs import OutputRules
from orchestrator.runs.files import laid_files
from orchestrator.runs.files.code_snapshot import take
from orchestrator.runs.files.laid_files import SMALL, lay, words_on_links

LIMIT = 10 << 20


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    for name, size in {
        "train.py": 1, ".gitignore": 0, "data/meta.pkl": 9, "data/train.csv": SMALL + 1, "out/ckpt.pt": SMALL + 2,
        "input.txt": 3, "env/pyvenv.cfg": 1, "env/lib/x": 1,
    }.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * size)
    (folder / ".gitignore").write_text("*.csv\n*.bin\n*.pkl\ninput.txt\n/out/\nenv/\n")
    return folder


def laid(code: Path, limit: int = LIMIT) -> tuple[Path, tuple[str, ...]]:
    copy = code.parent / "runs/r-1/code"
    ignored = take(code, copy, ".orchignore", limit, None).ignored
    return copy, lay(code, copy, ignored, limit)


def test_data_becomes_links_and_what_a_script_may_overwrite_copies(code: Path) -> None:
    copy, linked = laid(code)
    files = {path.relative_to(copy).as_posix(): path.is_symlink() for path in copy.rglob("*") if not path.is_dir()}
    assert files == {
        "train.py": False, ".gitignore": False, "data/meta.pkl": False, "data/train.csv": True, "out/ckpt.pt": False,
        "input.txt": False,
    }  # fmt: skip
    assert (copy / "env").is_symlink()  # a virtual environment only works in its own place
    assert linked == ()
    assert (copy / "data/train.csv").read_bytes() == (code / "data/train.csv").read_bytes()
    assert (copy / "data/meta.pkl").stat().st_mtime_ns == (code / "data/meta.pkl").stat().st_mtime_ns
    (copy / "out/ckpt.pt").write_text("of the run")
    assert (code / "out/ckpt.pt").stat().st_size == SMALL + 2


@pytest.mark.parametrize("state", [".orch", "out/state"])
def test_the_folder_of_orchs_runs_is_not_laid_into_a_run(code: Path, state: str) -> None:
    (code / ".gitignore").write_text(".orch/\n/out/\n")
    for name in ("runs/r-0/code/old.py", "runs/r-0/secrets.json", "runs/r-1/run.json", "cache/code/x"):
        (code / state / name).parent.mkdir(parents=True, exist_ok=True)
        (code / state / name).write_text("x")
    copy = code / state / "runs/r-1/code"
    lay(code, copy, take(code, copy, ".orchignore", LIMIT, None).ignored, LIMIT)
    assert not (copy / state).exists()
    assert (copy / "out/ckpt.pt").exists()


def test_only_what_the_run_writes_is_an_output(code: Path) -> None:
    copy, _ = laid(code)
    write_baseline(str(copy), baseline(str(copy)))
    before = find(str(copy.parent), str(copy), "", OutputRules(exclude=("!data/",)), here=True)
    assert (before.files, before.passed_over) == ([], [])
    (copy / "out/ckpt.pt").write_text("new")
    (copy / "out/log").write_text("new")
    with (copy / "data/train.csv").open("ab") as file:  # through the link
        file.write(b"more")
    after = find(str(copy.parent), str(copy), "", OutputRules(exclude=("!data/",)), here=True)
    assert [entry.path for entry in after.files] == ["out/ckpt.pt", "out/log"]
    assert after.passed_over == [f"{copy}/data/train.csv"]


def test_a_checkpoint_that_is_too_large_to_be_copied_is_named(code: Path) -> None:
    copy, linked = laid(code, SMALL)
    assert (linked, (copy / "out/ckpt.pt").is_symlink(), (copy / "input.txt").is_symlink()) == (
        ("out/ckpt.pt",), True, False,
    )  # fmt: skip
    assert words_on_links(linked).startswith("note: out/ckpt.pt: too large to be copied")
    assert words_on_links(()) == words_on_links(None) == ""


def test_files_that_may_be_weights_are_copied_last_and_links_to_weights_too(code: Path) -> None:
    (code / "model.bin").write_bytes(b"x" * (SMALL + 1))
    (code / "last.pt").symlink_to("out/ckpt.pt")
    (code / ".gitignore").write_text("*.bin\n*.csv\n*.pkl\n*.pt\nenv/\n")
    copy, linked = laid(code)
    assert not any((copy / name).is_symlink() for name in ("model.bin", "last.pt", "out/ckpt.pt"))
    (copy / "last.pt").write_text("of the run")
    assert (code / "out/ckpt.pt").stat().st_size == SMALL + 2
    shutil.rmtree(copy.parent)
    copy, linked = laid(code, SMALL)
    assert linked == ("out/ckpt.pt",)  # a link of the user, or a file that may be data, is not named
    assert (copy / "model.bin").is_symlink() == (copy / "last.pt").is_symlink() is True


def test_a_reflink_makes_every_file_the_runs_own(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def cloned(source: IO[bytes], target: IO[bytes]) -> bool:
        target.write(source.read())
        return True

    monkeypatch.setattr(copying, "is_cloned", cloned)
    copy, linked = laid(code, SMALL)
    assert linked == ()
    for name in ("data/train.csv", "out/ckpt.pt"):
        assert not (copy / name).is_symlink()
        assert (copy / name).read_bytes() == (code / name).read_bytes()


def test_a_folder_of_many_files_becomes_one_link(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laid_files, "MOST_IN_FOLDER", 3)
    for number in range(4):
        (code / f"out/{number}").touch()
    copy, _ = laid(code)
    assert (copy / "out").readlink() == code / "out"


def test_a_link_to_a_folder_outside_is_followed_here(code: Path) -> None:
    (code.parent / "elsewhere").mkdir()
    (code.parent / "elsewhere/x").write_text("1")
    (code / "linked").symlink_to("../elsewhere")
    copy, _ = laid(code)
    assert (copy / "linked/x").read_text() == "1"


def test_odd_names_and_what_is_no_file_are_no_trouble(code: Path) -> None:
    name = os.fsdecode(b"out/odd-\xff\n name")
    (code / name).write_text("1")
    os.mkfifo(code / "out/pipe")
    (code / "out/dangling").symlink_to("nowhere")
    (code / "out/loop").symlink_to(".")
    copy, _ = laid(code)
    assert (copy / name).read_text() == "1"
    assert not (copy / "out/pipe").exists()


def test_a_full_disk_is_one_sentence(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, only_clone: bool) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(laid_files, "copy_file", full)
    with pytest.raises(
        UsageError, match="an ignored file can't be copied into the run's folder: No space left on device"
    ):
        laid(code)
