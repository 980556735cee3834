"""Sends files of this machine. One answer has parts of many files, and each part is hashed while it is sent."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from orchestrator.node.server.request import Answer, Request, at_user
from orchestrator.protocol.arriving import PIECE
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.reading import descriptor_of, info_of

HASH_BYTES = 32
PATIENCE = 3.0  # the longest wait in seconds until the files have been unchanged for long enough
_Facts = tuple[int, int]  # a file's size and mtime_ns


def read_files(request: Request, payload: bytes) -> Answer:
    """Return parts of files. If `hashed` is true, each part is followed by its sha256, or by zeros if the file changed
    while it was sent.

    The payload is a JSON list of [folder, path, offset, count, facts, sha256]. `folder` is an index into the list
    `below`, `path` is relative to that folder, and no link on the path is followed. `facts` is [size, mtime_ns] of the
    wanted version, or null for any version. If the file has this sha256, it is not sent; "" matches no file.

    In the answer, `files` has [count, size, mtime_ns, whether the sha256 matched] for each file, or null if the file or
    its wanted version does not exist.

    still: the number of seconds for which each file must have been unchanged. The request waits up to PATIENCE for
    this. Files that still change afterwards count as missing.
    """
    below = [at_user(folder) for folder in request["below"]]
    asked = [(below[folder], path, *rest) for folder, path, *rest in parse_json(payload)]
    still = float(request.get("still") or 0)
    if still:
        _wait_until_still([(folder, path) for folder, path, *_ in asked], still)
    parts = Parts(hashed=bool(request["hashed"]), newest=time.time_ns() - int(still * 1e9) if still else None)
    try:
        rows = [parts.add(*each) for each in asked]
    except BaseException:
        parts.close()
        raise
    return {"files": rows}, parts


def _wait_until_still(files: list[tuple[str, str]], seconds: float) -> None:
    end = time.monotonic() + PATIENCE
    for folder, path in files:
        with contextlib.suppress(OSError):  # the file is reported as missing
            while (left := end - time.monotonic()) > 0:
                age = (time.time_ns() - info_of(f"{folder}/{path}", folder).st_mtime_ns) / 1e9
                if age >= seconds:
                    break
                time.sleep(min(seconds - age, left))  # no event reports that a file is no longer written to


@dataclass
class _Part:
    """A part of an open file. `facts` are the file's size and time when it was opened."""

    descriptor: int
    offset: int
    count: int
    facts: _Facts
    is_right: bool = True

    def blocks(self) -> Iterator[memoryview]:
        """Read and yield the part's bytes. Missing bytes are replaced by zeros, because the receiver expects a fixed
        number of bytes.
        """
        room, at, end = memoryview(bytearray(min(self.count, PIECE))), self.offset, self.offset + self.count
        while at < end:
            block, got = room[: min(end - at, PIECE)], 0
            with contextlib.suppress(OSError):  # the disk fails
                got = os.preadv(self.descriptor, [block], at)
            if not got:
                self.is_right = False
                block[:] = bytes(len(block))
            at += got or len(block)
            yield block[: got or len(block)]
        self.is_right &= _facts(self.descriptor) == self.facts

    def pass_on(self, sink: BinaryIO) -> None:
        """Write the part's bytes with sendfile, which does not copy them into this process."""
        sink.flush()
        at, end = self.offset, self.offset + self.count
        try:
            while at < end and (sent := os.sendfile(sink.fileno(), self.descriptor, at, end - at)):
                at += sent
        except OSError as error:  # `blocks` continues, and replaces unreadable bytes by zeros
            if error.errno not in (errno.EIO, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        sink.writelines(_Part(self.descriptor, at, end - at, self.facts).blocks())

    def sha256(self, sink: BinaryIO | None = None) -> bytes:
        """Return the hash of the part's bytes, and write the bytes to `sink`. If the file changed or can't be read,
        return zeros instead of the hash.
        """
        digest = hashlib.sha256()
        for block in self.blocks():
            digest.update(block)
            if sink is not None:
                sink.write(block)
        return digest.digest() if self.is_right else bytes(HASH_BYTES)


def _facts(descriptor: int) -> _Facts:
    info = os.fstat(descriptor)
    return info.st_size, info.st_mtime_ns


class Parts:
    """The binary part of an answer: parts of open files, which are read while they are sent.

    newest: the latest modification time that a file may have.
    """

    def __init__(self, *, hashed: bool, newest: int | None) -> None:
        self.hashed, self.newest = hashed, newest
        self.parts: list[_Part] = []

    @property
    def count(self) -> int:
        """Return the total number of bytes to send."""
        return sum(part.count + HASH_BYTES * self.hashed for part in self.parts)

    def add(
        self, below: str, path: str, offset: int, count: int, facts: list[int] | None, sha256: str
    ) -> list[Any] | None:
        """Open a file, add its requested part, and return the facts about the file for the answer."""
        try:
            descriptor = descriptor_of(f"{below}/{path}", below)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # the file exists, but a limit on open files is reached
                raise
            return None
        now = _facts(descriptor)
        is_wanted = (facts is None or tuple(facts) == now) and (self.newest is None or now[1] <= self.newest)
        is_known = is_wanted and bool(sha256) and _Part(descriptor, 0, now[0], now).sha256().hex() == sha256
        count = max(0, min(count, now[0] - offset))
        if is_wanted and not is_known:
            self.parts.append(_Part(descriptor, offset, count, now))
        else:
            os.close(descriptor)
        return [0 if is_known else count, *now, is_known] if is_wanted else None

    def send(self, sink: BinaryIO) -> None:
        """Write all parts and close their files. Raises OSError if the connection is broken."""
        try:
            for part in self.parts:
                if self.hashed:
                    sink.write(part.sha256(sink))
                elif isinstance(sink, io.BytesIO):
                    sink.writelines(part.blocks())
                else:
                    part.pass_on(sink)
        finally:
            self.close()

    def read(self) -> bytes:
        """Return the bytes of all parts and close their files."""
        sink = io.BytesIO()
        self.send(sink)
        return sink.getvalue()

    def close(self) -> None:
        """Close the files of all parts."""
        while self.parts:
            os.close(self.parts.pop().descriptor)
