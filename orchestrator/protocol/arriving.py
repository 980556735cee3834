"""A file that arrives: written beside its place, hashed while it is written, renamed once it is right. Python 3.9.

Every file that orch copies as a whole from one place to another arrives in this way. The name of the partial file holds
the version that arrives. So a later copy continues an interrupted copy of the same version, and of no other version.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Union

from orchestrator.protocol.checkpoints.checksum import Algorithm, Hasher, hasher
from orchestrator.protocol.files import PRIVATE, open_own

PIECE = 1 << 20
LONGEST_NAME = 180  # bytes; with the version a name must stay below the 255 that file systems take
SYNC_AFTER = 8 << 20  # bytes from which on the disk is at work while more bytes come
_Path = Union[str, "Path"]


def partial_of(target: _Path, version: str) -> str:
    """Return the name of the file while this version of it arrives. A long name is replaced by its hash."""
    folder, name = os.path.split(target)
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return os.path.join(folder, f".{name}.{version[:40]}.partial")


def stem_of(partial: str) -> str:
    """Return the part of a partial file's path that is the same for all versions of its target."""
    return partial.removesuffix(".partial").rpartition(".")[0]


class Arriving:
    """A file on its way to `target`, whose folder exists.

    version: what tells this version of the file from others, such as its hash. `most` is the size of that version. What
    an interrupted copy has left is kept and hashed, and `size` says how much that is. durable: the file is on the disk
    before it gets its name. Raises OSError, or NotInstalledError if this Python lacks the hash algorithm.
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
    ) -> None:
        self.target, self.partial, self.durable = os.fspath(target), partial_of(target, version), durable
        self.digest: Hasher = hasher(algorithm)
        self.size = 0
        self.problem: OSError | None = None  # why bytes could not be written
        self.pool: ThreadPoolExecutor | None = None
        self.synced: Future[None] | None = None
        self.file = open(open_own(self.partial, os.O_RDWR | os.O_CREAT, mode), "r+b", buffering=0)  # noqa: SIM115 (`leave` closes it)
        here = os.fstat(self.file.fileno()).st_size
        if 0 < here <= most:
            room = memoryview(bytearray(PIECE))  # used again and again, because new memory costs more than the reading
            while count := self.file.readinto(room):
                self.digest.update(room[:count])
                self.size += count
        if here != self.size:
            self.file.truncate(self.size)

    def fill(self, stream: Any, count: int, also: Hasher | None = None) -> None:
        """Take the next bytes of a stream, even if they can't be written. `also` hashes them too.

        Raises EOFError if the stream ends before.
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
        """Write and hash the next bytes. An error is kept as `problem`, and `finish` raises it."""
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
            error.filename = self.partial
            self.problem = error
        except ValueError:  # another thread has closed the file, because nobody waits for it any more
            self.problem = OSError(errno.EBADF, os.strerror(errno.EBADF), self.partial)

    def _sync_meanwhile(self) -> None:
        self.pool = self.pool or ThreadPoolExecutor(1)
        if self.synced is None or self.synced.done():
            if self.synced is not None:
                self.synced.result()
            self.synced = self.pool.submit(os.fsync, self.file.fileno())

    def finish(self, mtime_ns: int | None = None, mode: int | None = None) -> None:
        """Give the file its name, and its time and mode. Raises OSError if it could not be written."""
        try:
            if self.problem is not None:
                raise self.problem
            if self.durable:
                os.fsync(self.file.fileno())
            if mode is not None:
                os.fchmod(self.file.fileno(), mode)
            if mtime_ns is not None:
                os.utime(self.file.fileno(), ns=(mtime_ns, mtime_ns))
        finally:
            self.leave()
        os.replace(self.partial, self.target)

    def leave(self) -> None:
        """Close the file. What came stays, so that a later copy can continue it."""
        self.file.close()
        if self.pool is not None:
            self.pool.shutdown()

    def drop(self) -> None:
        """Close the file and delete what came."""
        self.leave()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.partial)
