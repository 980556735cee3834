"""The writer of files in folders that a user names follows no link of another user and uses no folder of theirs."""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path

import pytest

from orchestrator.protocol import reading
from orchestrator.protocol.arriving import Arriving, partial_of
from orchestrator.protocol.writing import named_folder, write_named

OTHER = 54321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@pytest.fixture(params=["linux", "darwin"], autouse=True)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no descriptors that only look at a file."""
    if request.param == "darwin":
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(reading, "PASS", os.O_RDONLY)
        monkeypatch.setattr("orchestrator.protocol.files._sync", lambda *_: None)  # there, it is F_FULLFSYNC


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A file of the user that an attacker wants to be overwritten."""
    path = tmp_path / "home/.profile"
    path.parent.mkdir()
    path.write_text("mine")
    return path


def given_away(path: Path, mode: int = 0o777) -> Path:
    if not path.is_symlink():
        path.chmod(mode)
    os.chown(path, OTHER, OTHER, follow_symlinks=False)
    return path


def test_a_file_is_replaced_and_missing_folders_are_made(tmp_path: Path) -> None:
    for text in ("one", "two"):
        with named_folder(tmp_path / "new/results") as folder, folder.below("a/b") as inside:
            inside.write("file", text.encode())
    assert (tmp_path / "new/results/a/b/file").read_text() == "two"
    assert os.listdir(tmp_path / "new/results/a/b") == ["file"]


def test_a_link_below_the_folder_is_replaced_or_refused_and_never_followed(tmp_path: Path, private: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").symlink_to(private)
    (tmp_path / "out/folder").symlink_to(private.parent)
    with named_folder(tmp_path / "out") as folder:
        folder.write("file", b"results")
        with pytest.raises(OSError, match="a folder in the path is a symbolic link, which orch does not follow"):
            folder.below("folder")
        with pytest.raises(OSError, match="the path leaves the folder"):
            folder.below("../home")
    assert (private.read_text(), (tmp_path / "out/file").read_text()) == ("mine", "results")


def test_the_user_s_own_links_on_the_path_are_followed_and_named(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "short").symlink_to("disk")
    (tmp_path / "script").symlink_to(tmp_path / "short/real")
    with named_folder(tmp_path / "short/new") as folder:
        assert folder.path == str(tmp_path / "disk/new")
    assert write_named(tmp_path / "script", b"x") == str(tmp_path / "disk/real")
    assert ((tmp_path / "script").is_symlink(), (tmp_path / "disk/real").read_text()) == (True, "x")


def test_links_that_lead_in_a_circle_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for write in (lambda: named_folder(tmp_path / "a/x"), lambda: write_named(tmp_path / "a", b"")):
        with pytest.raises(OSError, match=r"symbolic link"):
            write()


@needs_root
def test_another_user_s_folder_is_refused_with_the_owner(tmp_path: Path) -> None:
    theirs = given_away(tmp_path)
    (theirs / "out").mkdir()
    given_away(theirs / "out")
    words = re.escape(f"the folder belongs to user {OTHER}, and orch writes only into your own folders: '{theirs}/out'")
    for write in (lambda: named_folder(theirs / "out"), lambda: write_named(theirs / "out/file", b"")):
        with pytest.raises(PermissionError, match=words):
            write()
    with pytest.raises(PermissionError, match="belongs to user"):  # everybody may replace what is there
        named_folder(theirs / "new")
    (theirs / "mine").mkdir()
    given_away_below = theirs / "mine/logs"
    given_away_below.mkdir()
    given_away(given_away_below)
    with named_folder(theirs / "mine") as folder, pytest.raises(PermissionError, match="belongs to user"):
        folder.below("logs")


@needs_root
@pytest.mark.parametrize("mode", [0o1777, 0o2775])
def test_in_a_sticky_or_a_group_s_folder_orch_makes_a_folder_of_its_own(tmp_path: Path, mode: int) -> None:
    theirs = tmp_path / "lab"
    theirs.mkdir()
    given_away(theirs, mode)
    with named_folder(theirs / "new"):
        assert (theirs / "new").stat().st_mode & 0o777 == 0o700
    assert write_named(theirs / "file", b"x") == str(theirs / "file")
    with pytest.raises(PermissionError, match="belongs to user"):
        named_folder(theirs)


def test_a_group_may_write_to_the_user_s_own_folder(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project").chmod(0o2775)
    with named_folder(tmp_path / "project") as folder:
        folder.write("file", b"x")


@needs_root
def test_another_user_s_link_is_followed_nowhere(tmp_path: Path, private: Path) -> None:
    for name, target in (("folder", private.parent), ("file", private)):
        (tmp_path / name).symlink_to(target)
        given_away(tmp_path / name)
    for write in (
        lambda: named_folder(tmp_path / "folder/new"),
        lambda: write_named(tmp_path / "folder/.profile", b"x"),
        lambda: write_named(tmp_path / "file", b"x"),
    ):
        with pytest.raises(PermissionError, match=f"the link belongs to user {OTHER}"):
            write()
    assert private.read_text() == "mine"


def test_a_file_with_a_second_name_and_a_stranger_s_file_are_not_continued(tmp_path: Path, private: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in (partial_of("model.pt", "v1"), "log"):
        os.link(private, tmp_path / "out" / name)
    with named_folder(tmp_path / "out") as folder:
        assert folder.own_file("log", os.O_RDWR) is None
        assert folder.read("log", 100) is None
        arriving = Arriving("model.pt", "v1", 100, folder=folder)
        arriving.take(b"weights")
        arriving.finish()
    assert (private.read_text(), (tmp_path / "out/model.pt").read_text()) == ("mine", "weights")


@pytest.mark.parametrize("through_link", [False, True])
def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path, through_link: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with pytest.raises(OSError, match="this is no ordinary file, and orch does not replace it"):
        write_named(tmp_path / ("link" if through_link else "pipe"), b"x")
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
