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
from orchestrator.node.system.private import as_the_user, hold_umask, make_private, users_umask, why_exposed, why_unsafe


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


def test_a_folder_is_safe_where_nobody_can_put_another_in_its_place(tmp_path: Path) -> None:
    lab, mine = tmp_path / "lab", tmp_path / "lab" / "mine"
    mine.mkdir(parents=True)
    for path in (lab, mine):
        path.chmod(0o755)
    assert why_unsafe(str(mine)) is None
    mine.chmod(0o775)
    assert why_unsafe(str(mine), shared_parent=True) == f"{mine} may be written by others (mode 0775)"
    mine.chmod(0o700)
    lab.chmod(0o2775)
    swap = f"who may put another folder in the place of {mine}"
    assert why_unsafe(str(mine)) == f"{lab} may be written by others (mode 2775), {swap}"
    assert why_unsafe(str(mine), shared_parent=True) is None
    lab.chmod(0o1777)  # as /tmp
    assert why_unsafe(str(mine)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_below_anothers_and_behind_anothers_link_is_not_safe(tmp_path: Path) -> None:
    mine, link = tmp_path / "lab" / "mine", tmp_path / "link"
    mine.mkdir(parents=True, mode=0o755)
    mine.parent.chmod(0o755)
    link.symlink_to(mine.parent)
    assert why_unsafe(str(link / "mine")) is None
    os.chown(link, 54321, 54321, follow_symlinks=False)
    assert str(why_unsafe(str(link / "mine"))).startswith(f"{link} belongs to user 54321, who may put another folder")
    os.chown(mine.parent, 54321, 54321)
    assert str(why_unsafe(str(mine))).startswith(f"{mine.parent} belongs to user 54321")
    os.chown(mine.parent, 0, 0)
    os.chown(link, 0, 0, follow_symlinks=False)
    (tmp_path / "way").mkdir()
    (tmp_path / "way").chmod(0o777)  # others may put another link there
    (tmp_path / "way" / "link").symlink_to(mine.parent)
    assert str(why_unsafe(str(tmp_path / "way" / "link" / "mine"))).startswith(
        f"{tmp_path}/way may be written by others"
    )
