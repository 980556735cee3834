"""Whether a folder is still the one that a process had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.node.system.own_folder import OwnFolder


def test_a_folder_that_was_removed_is_known_even_if_another_took_its_place(tmp_path: Path) -> None:
    path = tmp_path / "own"
    path.mkdir()
    own = OwnFolder(str(path))
    (path / "file").touch()
    assert not own.is_removed()
    (path / "file").unlink()
    path.rmdir()
    assert own.is_removed()
    path.mkdir()
    assert own.is_removed()


def test_nothing_is_said_of_a_folder_that_never_was(tmp_path: Path) -> None:
    assert not OwnFolder(str(tmp_path / "none")).is_removed()


def test_the_folder_is_let_go_of_with_its_last_user(tmp_path: Path) -> None:
    own = OwnFolder(str(tmp_path))
    descriptor = own.descriptor
    os.fstat(descriptor)
    del own
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
