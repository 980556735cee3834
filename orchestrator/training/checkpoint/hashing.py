"""Writing files with a checksum at nearly the cost of the plain file; what is written is not read again."""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from orchestrator.protocol.checkpoints.checksum import Checksum, chosen, hasher

THREADED_BYTES = 1 << 16
COPIED_BYTES = 1 << 22


class HashingWriter:
    """A file-like object for torch.save and DCP: hashes a block, writes it, and flushes the ones before it, at once.

    The first OSError is kept in `error` and later writes are swallowed, because torch's C++ writer turns an
    exception within its calls into an unrelated one; `finish` raises it.
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
            self._have_flushed()
            # The block's memory is torch's and valid only within this call: the thread must end here too.
            hashed.result()
        return len(view)

    def _to_file(self, view: memoryview) -> None:
        try:
            _write_all(self._file, view)
        except OSError as error:
            self.error = error

    def _have_flushed(self) -> None:
        """Have the disk work while the next block is hashed; one flush at a time, for each takes a turn of the disk."""
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
        """Do nothing: `finish` flushes."""

    def close(self) -> None:
        """End the threads."""
        self._hasher.shutdown()
        self._flusher.shutdown()

    def finish(self) -> dict[str, Any]:
        """Force the file to the disk and return its entry in a manifest; raises the first OSError of all writes."""
        if self.error is not None:
            raise self.error
        self._wait_for_flush()
        os.fsync(self._file.fileno())
        return {str(self._algorithm): self._hash.hexdigest(), "bytes": self.bytes}


def _write_all(file: IO[bytes], view: memoryview) -> None:
    """Write all of `view`: an unbuffered file may take less than it is given (2 GiB at most on Linux)."""
    while len(view):
        view = view[file.write(view) :]


@contextmanager
def hashed(path: Path) -> Iterator[HashingWriter]:
    """Make a file and yield what hashes what is written to it."""
    with path.open("xb", buffering=0) as file:
        writer = HashingWriter(file)
        try:
            yield writer
        finally:
            writer.close()


@contextmanager
def without_crc32() -> Iterator[None]:
    """Have torch.save leave out the zip's own crc32: it costs as much as writing, and a checksum tells more."""
    before = bool(torch.serialization.get_crc32_options())
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def save_hashed(path: Path, state: object) -> dict[str, Any]:
    """torch.save `state` to `path`, on the disk when this returns; returns its entry in a manifest."""
    with hashed(path) as writer, without_crc32():
        torch.save(state, writer)  # type: ignore[arg-type]
        return writer.finish()


def copy_verified(source: IO[bytes], target: IO[bytes], checksum: Checksum) -> bool:
    """Copy an unbuffered file into another; returns whether what was read has the checksum; NotInstalledError."""
    digest, block = hasher(checksum.algorithm), bytearray(COPIED_BYTES)
    while count := source.readinto(block):  # type: ignore[attr-defined]
        part = memoryview(block)[:count]
        digest.update(part)
        _write_all(target, part)
    return digest.hexdigest() == checksum.hex


def sha256_of(content: bytes) -> str:
    """Return the sha256 of the bytes in hex."""
    return hashlib.sha256(content).hexdigest()
