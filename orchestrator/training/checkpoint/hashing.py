"""Writing and reading files with a checksum at nearly the cost of the plain file."""

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import torch

THREADED_BYTES = 1 << 16


class HashingWriter:
    """A file-like object for torch.save that hashes a block, writes it, and flushes the ones before it, at once.

    The first OSError is kept in `error` and later writes are swallowed, because torch's C++ writer turns an
    exception within its calls into an unrelated one; `finish` raises it.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.bytes = 0
        self.error: OSError | None = None
        self._file = file
        self._sha256 = hashlib.sha256()
        self._hasher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sha256")
        self._flusher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="fdatasync")
        self._flushes: list[Future[None]] = []

    def write(self, block: Any) -> int:
        """Write a bytes-like block and return its length."""
        view = memoryview(block).cast("B")
        self.bytes += len(view)
        if self.error is None and len(view) <= THREADED_BYTES:
            self._sha256.update(view)
            self._to_file(view)
        elif self.error is None:
            hashed = self._hasher.submit(self._sha256.update, view)
            self._to_file(view)
            # The disk works while the next block is hashed, instead of only at the end.
            self._flushes.append(self._flusher.submit(os.fdatasync, self._file.fileno()))
            # The block's memory is torch's and valid only within this call: the thread must end here too.
            hashed.result()
        return len(view)

    def _to_file(self, view: memoryview) -> None:
        try:
            _write_all(self._file, view)
        except OSError as error:
            self.error = error

    def flush(self) -> None:
        """Do nothing: `finish` flushes."""

    def close(self) -> None:
        """End the threads."""
        self._hasher.shutdown()
        self._flusher.shutdown()

    def finish(self) -> str:
        """Force the file to the disk and return its sha256 in hex; raises the first OSError of all writes."""
        for flush in self._flushes:
            flush.result()
        if self.error is not None:
            raise self.error
        os.fsync(self._file.fileno())
        return self._sha256.hexdigest()


def _write_all(file: IO[bytes], view: memoryview) -> None:
    """Write all of `view`: an unbuffered file may take less than it is given (2 GiB at most on Linux)."""
    while len(view):
        view = view[file.write(view) :]


def save_hashed(path: Path, state: object) -> tuple[str, int]:
    """torch.save `state` to `path`, on the disk when this returns; the sha256 in hex and the size in bytes."""
    before = bool(torch.serialization.get_crc32_options())
    with path.open("xb", buffering=0) as file:
        writer = HashingWriter(file)
        # The zip's own crc32 costs as much as writing, and sha256 tells more.
        torch.serialization.set_crc32_options(False)
        try:
            torch.save(state, writer)  # type: ignore[arg-type]
            return writer.finish(), writer.bytes
        finally:
            torch.serialization.set_crc32_options(before)
            writer.close()


def sha256_of(content: bytes) -> str:
    """Return the sha256 of the bytes in hex."""
    return hashlib.sha256(content).hexdigest()
