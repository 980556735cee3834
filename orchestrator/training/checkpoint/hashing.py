"""Computes the checksum of a file while the file is written, in little more time than a plain write takes."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from orchestrator.protocol.checkpoints.checksum import Checksum, chosen, hasher

THREADED_BYTES = 1 << 16  # bytes of a block; larger blocks are hashed in a thread
COPIED_BYTES = 1 << 22  # bytes that a copy reads at once


class HashingWriter:
    """A file-like object for torch.save and DCP. It hashes and writes each block while earlier blocks are flushed to
    the disk.

    The first OSError is stored in `error`, later writes are ignored, and `finish` raises the error. `write` can't raise
    it, because torch's C++ writer would turn it into an unrelated exception.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.bytes = 0
        self.error: OSError | None = None
        self._file = file
        self._algorithm = chosen(os.environ)
        self._hash = hasher(self._algorithm)
        self._hasher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hash")
        self._flusher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fdatasync")
        self._flushed: Future[None] | None = None

    def write(self, block: Any) -> int:
        """Write a bytes-like block and return its length."""
        view = memoryview(block).cast("B")
        self.bytes += len(view)
        if self.error is None and len(view) <= THREADED_BYTES:
            self._hash.update(view)
            self._to_file(view)
        elif self.error is None:
            hashed = self._hasher.submit(self._hash.update, view)
            self._to_file(view)
            self._flush_in_background()
            # The block's memory is torch's and valid only within this call, so the thread must finish here.
            hashed.result()
        return len(view)

    def _to_file(self, view: memoryview) -> None:
        try:
            _write_all(self._file, view)
        except OSError as error:
            self.error = error

    def _flush_in_background(self) -> None:
        """Flush to the disk while the next block is hashed. Only one flush runs at a time, because a single flush
        keeps the disk busy.
        """
        try:
            if self._flushed is None or self._flushed.done():
                self._wait_for_flush()
                self._flushed = self._flusher.submit(os.fdatasync, self._file.fileno())
        except OSError as error:
            self.error = error

    def _wait_for_flush(self) -> None:
        if self._flushed is not None:
            self._flushed.result()

    def tell(self) -> int:
        """Return how many bytes have been written."""
        return self.bytes

    def flush(self) -> None:
        """Do nothing, because `finish` flushes."""

    def close(self) -> None:
        """Stop the threads."""
        self._hasher.shutdown()
        self._flusher.shutdown()

    def finish(self) -> dict[str, Any]:
        """Flush the file to the disk, and return its entry for a manifest. Raises the first OSError of all writes."""
        if self.error is not None:
            raise self.error
        self._wait_for_flush()
        os.fsync(self._file.fileno())
        return {str(self._algorithm): self._hash.hexdigest(), "bytes": self.bytes}


def _write_all(file: IO[bytes], view: memoryview) -> None:
    """Write all of `view` in several writes, because Linux writes at most 2 GiB at once."""
    while len(view):
        view = view[file.write(view) :]


@contextmanager
def hashed(path: Path) -> Iterator[HashingWriter]:
    """Create a file, and yield a writer that hashes its contents."""
    with path.open("xb", buffering=0) as file:
        writer = HashingWriter(file)
        try:
            yield writer
        finally:
            writer.close()


@contextmanager
def without_crc32() -> Iterator[None]:
    """Make torch.save omit the crc32 in its zip file. Computing the crc32 takes as long as the writes, and it detects
    fewer errors than the checksum that orch computes.
    """
    before = bool(torch.serialization.get_crc32_options())
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def save_hashed(path: Path, state: object) -> dict[str, Any]:
    """Save `state` with torch.save to `path`, flush it to the disk, and return its entry for a manifest."""
    with hashed(path) as writer, without_crc32():
        torch.save(state, writer)  # type: ignore[arg-type]
        return writer.finish()


def copy_verified(source: IO[bytes], target: IO[bytes], checksum: Checksum) -> bool:
    """Copy an unbuffered file to another, and return whether its contents have the checksum.

    Raises NotInstalledError if this Python lacks the hash algorithm.
    """
    digest, block = hasher(checksum.algorithm), bytearray(COPIED_BYTES)
    while count := source.readinto(block):  # type: ignore[attr-defined]
        part = memoryview(block)[:count]
        digest.update(part)
        _write_all(target, part)
    return digest.hexdigest() == checksum.hex
