"""What hashes a file while it is written: every byte, and the disk at work meanwhile."""

import errno
import hashlib
import os
import threading
from pathlib import Path

import pytest

from orchestrator.training.checkpoint import hashing

LARGE = os.urandom(hashing.THREADED_BYTES + 1)


def test_many_blocks_cost_one_flush_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes, is_written = [], threading.Event()

    def flush(descriptor: int) -> None:
        flushes.append(descriptor)
        assert is_written.wait(60)

    monkeypatch.setattr(os, "fdatasync", flush)
    with hashing.hashed(tmp_path / "file") as writer:
        for block in (LARGE, b"small", LARGE, LARGE):
            writer.write(block)
        is_written.set()
        entry = writer.finish()
    assert len(flushes) == 1
    content = (tmp_path / "file").read_bytes()
    assert content == LARGE + b"small" + LARGE + LARGE
    assert entry == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def test_a_flush_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flush(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", flush)
    with hashing.hashed(tmp_path / "file") as writer:
        writer.write(LARGE)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            writer.finish()
