"""A file arrives whole under its name or not at all, and what came of it is continued only in the same version."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.protocol.arriving import SYNC_AFTER, Arriving, partial_of


def begun(target: Path, version: str, data: bytes) -> None:
    arriving = Arriving(target, version, len(data) + 1)
    arriving.take(data)
    arriving.leave()


def test_what_came_of_the_same_version_is_continued(tmp_path: Path) -> None:
    target = tmp_path / "a"
    begun(target, "1", b"one")
    assert not target.exists()
    arriving = Arriving(target, "1", 6)
    assert arriving.size == 3
    part = hashlib.sha256()
    arriving.fill(io.BytesIO(b"twoand what follows"), 3, part)
    assert part.digest() == hashlib.sha256(b"two").digest()
    assert arriving.digest.hexdigest() == hashlib.sha256(b"onetwo").hexdigest()
    arriving.finish(5_000_000_000, 0o700)
    assert target.read_bytes() == b"onetwo"
    assert (target.stat().st_mtime_ns, target.stat().st_mode & 0o777) == (5_000_000_000, 0o700)
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(("version", "most"), [("2", 6), ("1", 2)])
def test_another_version_or_more_than_it_has_begins_anew(tmp_path: Path, version: str, most: int) -> None:
    begun(tmp_path / "a", "1", b"one")
    arriving = Arriving(tmp_path / "a", version, most)
    assert arriving.size == 0
    arriving.take(b"xy")
    arriving.finish()
    assert (tmp_path / "a").read_bytes() == b"xy"


def test_a_stream_that_ends_too_soon_is_an_error_and_what_came_stays(tmp_path: Path) -> None:
    arriving = Arriving(tmp_path / "a", "1", 10)
    with pytest.raises(EOFError):
        arriving.fill(io.BytesIO(b"some"), 10)
    arriving.leave()
    assert Path(partial_of(tmp_path / "a", "1")).read_bytes() == b"some"


def test_a_full_disk_is_told_at_the_end_and_the_stream_is_read_all_the_same(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    stream = io.BytesIO(bytes(10_000))
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        arriving = Arriving(tmp_path / "a", "1", 10_000)
        arriving.fill(stream, 9_000)
        with pytest.raises(OSError, match="File too large") as caught:
            arriving.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert stream.tell() == 9_000
    assert caught.value.filename == partial_of(tmp_path / "a", "1")
    assert arriving.size == 4096 == os.path.getsize(partial_of(tmp_path / "a", "1"))


def test_a_large_file_is_synced_meanwhile(tmp_path: Path) -> None:
    arriving = Arriving(tmp_path / "a", "", 0)
    for _ in range(3):
        arriving.take(bytes(SYNC_AFTER // 2 + 1))
    assert arriving.synced is not None
    arriving.drop()
    assert os.listdir(tmp_path) == []


def test_bytes_for_a_file_that_was_closed_meanwhile_are_read_and_dropped(tmp_path: Path) -> None:
    """The thread that reads a connection goes on, because others wait for what follows on it."""
    arriving, stream = Arriving(tmp_path / "a", "1", 10), io.BytesIO(b"0123456789")
    arriving.leave()
    arriving.fill(stream, 10)
    assert stream.tell() == 10
    with pytest.raises(OSError, match="Bad file descriptor"):
        arriving.finish()


def test_a_link_in_the_place_of_a_partial_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    os.symlink(tmp_path / "other", partial_of(tmp_path / "a", "1"))
    with pytest.raises(OSError, match="link"):
        Arriving(tmp_path / "a", "1", 4)
    assert (tmp_path / "other").read_text() == "mine"


def test_a_sync_that_failed_in_the_background_fails_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports an error of a disk once, so the sync at the end can succeed."""
    answers, sync = iter([errno.EDQUOT]), os.fsync

    def once(descriptor: int) -> None:
        for code in answers:
            raise OSError(code, os.strerror(code))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", once)
    arriving = Arriving(tmp_path / "a", "1", SYNC_AFTER + 1)
    arriving.take(bytes(SYNC_AFTER + 1))
    with pytest.raises(OSError, match=os.strerror(errno.EDQUOT)):
        arriving.finish()
    assert not (tmp_path / "a").exists()


def test_a_file_arrives_where_no_thread_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    arriving = Arriving(tmp_path / "a", "1", SYNC_AFTER + 1)
    arriving.take(bytes(SYNC_AFTER + 1))
    arriving.finish()
    assert (tmp_path / "a").stat().st_size == SYNC_AFTER + 1


@pytest.mark.parametrize("end", [Arriving.finish, Arriving.drop])
def test_a_file_is_locked_until_it_has_its_name_or_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[Arriving], None]
) -> None:
    arriving = Arriving(tmp_path / "a", "1", 3, is_alone=True)
    arriving.take(b"one")

    def as_it_leaves(self: Arriving) -> None:
        assert not Path(self.partial).exists()
        self.file.close()

    monkeypatch.setattr(Arriving, "leave", as_it_leaves)
    end(arriving)
    assert arriving.file.closed
