"""What others may not read or write, whatever umask the user has."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.node.system import private
from orchestrator.node.system.private import as_the_user, hold_umask, make_private, users_umask, why_exposed


@pytest.fixture(autouse=True)
def _open_umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(private, "_users", -1)
    former = os.umask(0o002)
    yield
    os.umask(former)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_every_folder_that_is_made_is_private(tmp_path: Path) -> None:
    make_private(str(tmp_path / "a" / "b" / "c"))
    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/c")] == [0o700] * 3
    with pytest.raises(FileExistsError):
        make_private(str(tmp_path / "a"))
    make_private(str(tmp_path / "a"), exist_ok=True)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private(str(tmp_path / "file"), exist_ok=True)


def test_the_users_umask_is_given_back(tmp_path: Path) -> None:
    assert users_umask() == -1
    hold_umask()
    hold_umask()
    assert users_umask() == 0o002
    (tmp_path / "ours").touch()
    with as_the_user():
        (tmp_path / "users").touch()
    (tmp_path / "again").touch()
    touch = [sys.executable, "-c", f"open({str(tmp_path / 'program')!r}, 'w')"]
    subprocess.run(touch, umask=users_umask(), check=True)
    found = {path.name: mode(path) for path in tmp_path.iterdir()}
    assert found == {"ours": 0o600, "users": 0o664, "again": 0o600, "program": 0o664}


def test_who_may_write_into_a_folder(tmp_path: Path) -> None:
    assert why_exposed(str(tmp_path / "missing")) is None
    for bits, exposed in ((0o700, False), (0o755, False), (0o775, True), (0o1777, True)):
        tmp_path.chmod(bits)
        said = why_exposed(str(tmp_path))
        assert (said == f"{tmp_path} may be written by others (mode {bits:04o})") is exposed
        assert (said is None) is not exposed
    assert (why_exposed("/proc/1") is None) is (os.geteuid() == 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_whose_a_folder_is(tmp_path: Path) -> None:
    os.chown(tmp_path, 54321, 54321)
    assert why_exposed(str(tmp_path)) == f"{tmp_path} belongs to user 54321"
