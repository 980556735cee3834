"""An environment is what it was when it was made, or it is refused; while it is held nobody removes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.node.environments.folder import (
    BrokenEnvironmentError,
    content_hash,
    hold,
    seal,
    unused,
    why_unusable,
)
from orchestrator.node.environments.unused import find_old, remove


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An environment in a cache, as it is when it has been made."""
    folder = tmp_path / "env" / ("a" * 64)
    (folder / "lib" / "one").mkdir(parents=True)
    (folder / "lib" / "one" / "__init__.py").write_text("VERSION = 1\n")
    (folder / "lib64").symlink_to("lib")
    (folder / "pyvenv.cfg").write_text("home = /here\n")
    seal(str(folder), {"key": "a" * 64})
    return folder


def test_bytecode_is_no_change(folder: Path) -> None:
    (folder / "lib" / "one" / "__pycache__").mkdir()
    (folder / "lib" / "one" / "__pycache__" / "one.pyc").write_text("")
    assert why_unusable(str(folder)) is None


CHANGES = {
    "edited": lambda folder: (folder / "lib" / "one" / "__init__.py").write_text("VERSION = 2\n"),
    "added": lambda folder: (folder / "lib" / "one" / "more.py").touch(),
    "removed": lambda folder: (folder / "lib" / "one" / "__init__.py").unlink(),
    "led elsewhere": lambda folder: ((folder / "lib64").unlink(), (folder / "lib64").symlink_to("/")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_found_and_refused(folder: Path, change: str) -> None:
    CHANGES[change](folder)
    assert "is not as it was installed: lib" in str(why_unusable(str(folder)))
    with pytest.raises(BrokenEnvironmentError, match="is not as it was installed"):
        hold(str(folder))


def test_what_is_not_there_or_was_never_finished_is_no_environment(folder: Path) -> None:
    (folder / "orch-environment.json").unlink()
    assert "never finished" in str(why_unusable(str(folder)))
    assert why_unusable(f"{folder}x") == ""
    with pytest.raises(BrokenEnvironmentError, match="submit the job again"):
        hold(f"{folder}x")


def test_the_hash_is_of_what_is_installed_and_not_of_the_place(folder: Path) -> None:
    before = content_hash(str(folder))
    (folder / "pyvenv.cfg").write_text("home = /there\n")
    assert content_hash(str(folder)) == before
    CHANGES["edited"](folder)
    assert content_hash(str(folder)) != before


def test_what_is_held_is_not_removed(folder: Path) -> None:
    descriptor = hold(str(folder))
    (old,) = find_old(str(folder.parents[1]), oldest=1e12)
    with unused(str(folder)) as is_unused:
        assert not is_unused
    assert (remove(old), folder.exists()) == (False, True)
    os.close(descriptor)
    assert (remove(old), list(folder.parent.iterdir())) == (True, [])
