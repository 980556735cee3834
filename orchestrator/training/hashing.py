"""Writing and reading files with a checksum at nearly the cost of the plain file."""

import hashlib
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

THREADED_BYTES = 1 << 16
BLOCK_BYTES = 8 << 20


class HashingWriter:
    """A file-like object for torch.save: each block goes to the file and, in a second thread, through sha256.

    The first OSError is kept in `error` and later writes are swallowed, because torch's C++ writer turns an
    exception within its calls into an unrelated one; `finish` raises it.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.bytes = 0
        self.error: OSError | None = None
        self._file = file
        self._sha256 = hashlib.sha256()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sha256")

    def write(self, block: Any) -> int:
        """Write a bytes-like block and return its length."""
        view = memoryview(block).cast("B")
        self.bytes += len(view)
        if self.error is None:
            # The block's memory is torch's and valid only within this call: the thread must end here too.
            hashed = self._pool.submit(self._sha256.update, view) if len(view) > THREADED_BYTES else None
            try:
                _write_all(self._file, view)
            except OSError as error:
                self.error = error
            if hashed is not None:
                hashed.result()
            else:
                self._sha256.update(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing: `finish` flushes."""

    def finish(self) -> str:
        """Force the file to the disk and return its sha256 in hex; raises the first OSError of all writes."""
        self._pool.shutdown()
        if self.error is not None:
            raise self.error
        self._file.flush()
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
        finally:
            torch.serialization.set_crc32_options(before)
        return writer.finish(), writer.bytes


def write_synced(path: Path, content: bytes) -> None:
    """Write a small new file and force it to the disk."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Force a folder's entries to the disk, so that a rename within it survives a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """Map a file's bytes into memory for reading; what is hashed is then what is loaded, and memory is not doubled."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def sha256_of(content: mmap.mmap | bytes) -> str:
    """Return the sha256 of the bytes in hex."""
    return hashlib.sha256(content).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the sha256 of a file in hex, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
