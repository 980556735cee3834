"""What hashes a file while it is written: every byte, and the disk at work meanwhile."""

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import blake3
import pytest

from orchestrator.protocol.checkpoints.checksum import VARIABLE
from orchestrator.training.checkpoint import hashing
from tests.patience import PATIENCE

LARGE = os.urandom(hashing.THREADED_BYTES + 1)


@pytest.mark.parametrize(("algorithm", "digest"), [("sha256", hashlib.sha256), ("blake3", blake3.blake3)])
def test_many_blocks_cost_one_flush_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: str, digest: Callable[[bytes], Any]
) -> None:
    monkeypatch.setenv(VARIABLE, algorithm)
    flushes, is_written = [], threading.Event()

    def flush(descriptor: int) -> None:
        flushes.append(descriptor)
        assert is_written.wait(PATIENCE)

    monkeypatch.setattr(os, "fdatasync", flush)
    with hashing.hashed(tmp_path / "file") as writer:
        for block in (LARGE, b"small", LARGE, LARGE):
            writer.write(block)
        is_written.set()
        entry = writer.finish()
    assert len(flushes) == 1
    content = (tmp_path / "file").read_bytes()
    assert content == LARGE + b"small" + LARGE + LARGE
    assert entry == {algorithm: digest(content).hexdigest(), "bytes": len(content)}


def test_a_flush_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flush(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", flush)
    with hashing.hashed(tmp_path / "file") as writer:
        writer.write(LARGE)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            writer.finish()
