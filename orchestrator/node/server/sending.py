"""Sends files of this machine: parts of many files in one answer, each part hashed while it is sent."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import time
from dataclasses import dataclass
from typing import Any, BinaryIO

from orchestrator.node.server.request import Answer, Request, at_user
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.reading import descriptor_of, info_of

PIECE = 1 << 20
HASH_BYTES = 32
PATIENCE = 5.0  # seconds that a request waits for its files to be unchanged for long enough
_Facts = tuple[int, int]  # a file's size and mtime_ns


def read_files(request: Request, payload: bytes) -> Answer:
    """Return parts of files. `hashed`: each part is followed by its sha256, or by zeros if the file changed meanwhile.

    The payload is a JSON list of [folder, path, offset, count, facts, sha256]. The folder is a number in `below`; the
    path continues there, and no link on it is followed. Facts are [size, mtime_ns] of the version that is wanted, or
    null for any version. A file whose sha256 is this one is not sent; "" matches no file. `files` has [count, size,
    mtime_ns, is its sha256 this one?] for each file, or null if there is no such file or version.
    still: seconds for which each file must have been unchanged. The request waits up to PATIENCE for that; afterwards,
    other files count as missing.
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
        with contextlib.suppress(OSError):  # it is reported as missing
            while (left := end - time.monotonic()) > 0:
                age = (time.time_ns() - info_of(f"{folder}/{path}", folder).st_mtime_ns) / 1e9
                if age >= seconds:
                    break
                time.sleep(min(seconds - age, left))  # no event reports that a file is not written


@dataclass(frozen=True)
class _Part:
    """A part of an open file."""

    descriptor: int
    offset: int
    count: int
    facts: _Facts


class Parts:
    """The bytes of an answer: parts of open files, which go to the connection as they are read.

    newest: the newest time that a file may have.
    """

    def __init__(self, *, hashed: bool, newest: int | None) -> None:
        self.hashed, self.newest = hashed, newest
        self.parts: list[_Part] = []

    @property
    def count(self) -> int:
        """Return the number of bytes."""
        return sum(part.count + HASH_BYTES * self.hashed for part in self.parts)

    def add(
        self, below: str, path: str, offset: int, count: int, facts: list[int] | None, sha256: str
    ) -> list[Any] | None:
        """Open a file, and return its row in the answer."""
        try:
            descriptor = descriptor_of(f"{below}/{path}", below)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # the file is there, and this machine lacks something
                raise
            return None
        now = _facts(descriptor)
        is_wanted = (facts is None or tuple(facts) == now) and (self.newest is None or now[1] <= self.newest)
        is_known = is_wanted and bool(sha256) and _sha256(descriptor, now) == sha256
        count = max(0, min(count, now[0] - offset))
        if is_wanted and not is_known:
            self.parts.append(_Part(descriptor, offset, count, now))
        else:
            os.close(descriptor)
        return [0 if is_known else count, *now, is_known] if is_wanted else None

    def send(self, sink: BinaryIO) -> None:
        """Write all parts and close their files. OSError if the connection is gone."""
        try:
            for part in self.parts:
                if not self.hashed:
                    sink.flush()
                    _pass_on(part, sink)
                else:
                    sink.write(_copy(part, sink))
        finally:
            self.close()

    def read(self) -> bytes:
        """Return the bytes of all parts and close their files."""
        sink = io.BytesIO()
        try:
            for part in self.parts:
                digest = _copy(part, sink)
                sink.write(digest if self.hashed else b"")
        finally:
            self.close()
        return sink.getvalue()

    def close(self) -> None:
        """Close the files."""
        while self.parts:
            os.close(self.parts.pop().descriptor)


def _facts(descriptor: int) -> _Facts:
    info = os.fstat(descriptor)
    return info.st_size, info.st_mtime_ns


def _pass_on(part: _Part, sink: BinaryIO) -> None:
    """Send a part without reading it into this process. If the file is shorter by now, zeros are sent instead."""
    offset, end = part.offset, part.offset + part.count
    while offset < end:
        sent = os.sendfile(sink.fileno(), part.descriptor, offset, end - offset)
        if sent == 0:
            _pad(end - offset, sink)
            sink.flush()
            return
        offset += sent


def _copy(part: _Part, sink: BinaryIO) -> bytes:
    """Write a part and return its hash, which is zeros if the file changed meanwhile. Zeros replace missing bytes."""
    digest, left = hashlib.sha256(), part.count
    room = memoryview(bytearray(min(left, PIECE)))
    while left:
        try:
            got = os.preadv(part.descriptor, [room[: min(left, PIECE)]], part.offset + part.count - left)
        except OSError:  # a disk that fails; the connection must stay in order
            got = 0
        if got == 0:
            _pad(left, sink)
            return bytes(HASH_BYTES)
        digest.update(room[:got])
        sink.write(room[:got])
        left -= got
    return digest.digest() if _facts(part.descriptor) == part.facts else bytes(HASH_BYTES)


def _pad(count: int, sink: BinaryIO) -> None:
    while count > 0:
        sink.write(bytes(min(count, PIECE)))
        count -= PIECE


def _sha256(descriptor: int, facts: _Facts) -> str | None:
    """Return the sha256 of an open file; None if it can't be read or changes meanwhile."""
    digest = _copy(_Part(descriptor, 0, facts[0], facts), _Nowhere())
    return digest.hex() if any(digest) else None


class _Nowhere(io.BytesIO):
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        """Drop the bytes."""
        return len(data)
