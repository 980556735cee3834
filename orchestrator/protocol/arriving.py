"""Receives a file: writes it under a partial name beside its target, hashes it while it is written, and renames it when
it is complete.

Every file that orch copies as a whole is received in this way. The partial name contains the file's version, so a later
copy resumes only an interrupted copy of the same version.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from typing import Any, Union

from orchestrator.protocol.checkpoints.checksum import Algorithm, Hasher, hasher
from orchestrator.protocol.files import PRIVATE, is_at
from orchestrator.protocol.reading import open_own
from orchestrator.protocol.writing import Folder

PIECE = 1 << 20
LONGEST_NAME = 180  # bytes; the version is added, and file systems allow 255 bytes in a name
SYNC_AFTER = 8 << 20  # bytes; a larger file is synced in the background while more bytes arrive
_Path = Union[str, "Path"]


def partial_of(target: _Path, version: str) -> str:
    """Return the partial name under which this version of the file is received. A name that is too long is replaced
    by its hash.
    """
    folder, slash, name = os.fspath(target).rpartition("/")
    if len(name) * 4 > LONGEST_NAME and len(os.fsencode(name)) > LONGEST_NAME:  # a character has four bytes at most
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return f"{folder}{slash}.{name}.{version[:40]}.partial"


def is_partial(name: str) -> bool:
    """Return True if a file name has the form of a partial name."""
    return name.startswith(".") and name.endswith(".partial")


def stem_of(partial: str) -> str:
    """Return the part of a partial file's path that is the same for all versions of its target."""
    return partial.removesuffix(".partial").rpartition(".")[0]


class Arriving:
    """A file that is being received for the path `target`, whose folder exists.

    `version` identifies the version of the file, for example by its hash. `most` is the size of this version in bytes.
    The bytes that an interrupted copy has left are kept and hashed, and `size` is their number. With `durable`, the
    file is synced to the disk before the rename. The target is a name in the folder `folder`, if it is given. With
    `is_alone`, the partial file is locked, and BlockingIOError is raised if another process has locked it. Raises
    OSError, or NotInstalledError if this Python lacks the hash algorithm.
    """

    def __init__(
        self,
        target: _Path,
        version: str,
        most: int,
        algorithm: Algorithm = Algorithm.SHA256,
        *,
        durable: bool = True,
        mode: int = PRIVATE,
        is_alone: bool = False,
        folder: Folder | None = None,
    ) -> None:
        self.target, self.partial, self.durable = os.fspath(target), partial_of(target, version), durable
        self.folder, self.at = folder, None if folder is None else folder.descriptor
        self.digest: Hasher = hasher(algorithm)
        self.size = 0
        self.problem: OSError | None = None  # why bytes could not be written
        self.pool: ThreadPoolExecutor | None = None
        self.synced: Future[None] | None = None
        self.file = self._locked(mode) if is_alone else self._open(mode)
        here = os.fstat(self.file.fileno()).st_size
        if 0 < here <= most:
            room = memoryview(bytearray(PIECE))  # reused, because allocating memory costs more than reading
            while count := self.file.readinto(room):
                self.digest.update(room[:count])
                self.size += count
        if here != self.size:
            self.file.truncate(self.size)

    def _open(self, mode: int) -> FileIO:
        if self.folder is None:
            return FileIO(open_own(self.partial, os.O_RDWR | os.O_CREAT, mode), "r+")
        begun = self.folder.own_file(self.partial, os.O_RDWR)
        if begun is None:
            self.folder.remove(self.partial)
            begun = open_own(self.partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode, folder=self.at)
        return FileIO(begun, "r+")

    def _locked(self, mode: int) -> FileIO:
        while True:
            file = self._open(mode)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                raise
            if is_at(file.fileno(), self.partial):  # otherwise, another process has just renamed or removed it
                return file
            file.close()

    def fill(self, stream: Any, count: int, also: Hasher | None = None) -> None:
        """Read the next `count` bytes from a stream and write them. If a write fails, the rest is read and discarded.

        If the caller passes a second hash as `also`, the bytes are added to this hash too. Raises EOFError if the
        stream ends early.
        """
        room = memoryview(bytearray(min(count, PIECE)))
        while count > 0:
            got = stream.readinto(room[: min(count, PIECE)])
            if not got:
                raise EOFError("the connection was closed")
            count -= got
            self.take(room[:got])
            if also is not None:
                also.update(room[:got])

    def take(self, data: Any) -> None:
        """Write and hash the next bytes. An error is stored in `problem`, and `finish` raises it."""
        if self.problem is not None:
            return
        try:
            while data:
                written = self.file.write(data)
                self.digest.update(data[:written])
                self.size += written
                data = data[written:]
            if self.size > SYNC_AFTER:
                self._sync_meanwhile()
        except OSError as error:
            error.filename = self.partial if self.folder is None else f"{self.folder.path}/{self.partial}"
            self.problem = error
        except ValueError:  # another thread has closed the file, because it is no longer needed
            self.problem = OSError(errno.EBADF, os.strerror(errno.EBADF), self.partial)

    def _sync_meanwhile(self) -> None:
        self.pool = self.pool or ThreadPoolExecutor(1)
        if self.synced is None or self.synced.done():
            self._check_synced()
            with contextlib.suppress(RuntimeError):  # no thread can be started, so only `finish` syncs
                self.synced = self.pool.submit(os.fsync, self.file.fileno())

    def _check_synced(self) -> None:
        """Raise OSError if the last sync in the background failed. The kernel reports such an error only once."""
        if self.synced is not None:
            self.synced.result()

    def finish(self, mtime_ns: int | None = None, mode: int | None = None) -> None:
        """Set the file's mode and modification time, and rename it to its target. Raises OSError if the file could
        not be written.
        """
        try:
            if self.problem is not None:
                raise self.problem
            self._check_synced()
            if self.durable:
                os.fsync(self.file.fileno())
            if mode is not None:
                os.fchmod(self.file.fileno(), mode)
            if mtime_ns is not None:
                os.utime(self.file.fileno(), ns=(mtime_ns, mtime_ns))
            # before the lock is released
            os.replace(self.partial, self.target, src_dir_fd=self.at, dst_dir_fd=self.at)
        finally:
            self.leave()

    def leave(self) -> None:
        """Close the file. The received bytes are kept, so that a later copy can resume."""
        self.file.close()
        if self.pool is not None:
            self.pool.shutdown()

    def drop(self) -> None:
        """Delete the received bytes and close the file."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.partial, dir_fd=self.at)  # before the lock is released
        self.leave()
