"""Fetches many files from a machine in one request. A hash that is computed during the transfer verifies each file."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from orchestrator.backends.mirror.policy import Policy
from orchestrator.errors import BackendError
from orchestrator.node.server.sending import HASH_BYTES, PATIENCE
from orchestrator.protocol.arriving import PIECE, Arriving
from orchestrator.protocol.checkpoints.checksum import Algorithm, Checksum
from orchestrator.protocol.writing import Folder
from orchestrator.transport.machine import CALL_SECONDS, SLOWEST, Machine

ON_THE_WAY: Final = 3  # requests that are sent before the first of them is answered
BATCH: Final = 16 << 20  # bytes of one request over a separate connection; a shared one would be blocked for others
MOST_FILES: Final = 200  # in one request: the machine has all of them open
HASH_SLOWEST: Final = 20 << 20  # bytes a second
MOST: Final = 1 << 40  # bytes of a file
NONSENSE: Final = "it sends other files than those that were requested"
ROOM: Final = 1 << 20  # bytes by which a file may be larger than it was when it was listed


class Wanted(NamedTuple):
    """A file to fetch: its `path` in the folder `below` on a machine, and its path `target` on this machine, which is a
    name in `folder` if that is given. In the folder `below`, no symbolic link is followed.
    """

    below: str
    path: str
    target: str
    size: int
    mtime_ns: int = 0
    checksum: Checksum | None = None  # from a manifest
    known: str = ""  # the sha256 of a file on this machine; a file with this hash is not sent
    executable: bool = False
    folder: Folder | None = None

    @property
    def version(self) -> str:
        """Return a text that is different for each version of the file."""
        return self.checksum.hex[:16] if self.checksum else f"{self.size}-{self.mtime_ns}"


class Landed(NamedTuple):
    """The result for one file: its hash, size and time if it was fetched or was already on this machine. If it could
    not be written, `problem` is the error. `is_continued`: an interrupted copy had left its first bytes.

    If there is neither a hash nor an error, the file was changed or removed on the other machine during the fetch.
    """

    wanted: Wanted
    sha256: str = ""
    size: int = 0
    mtime_ns: int = 0
    is_known: bool = False
    is_continued: bool = False
    problem: OSError | None = None


def fetch(machine: Machine, files: Iterable[Wanted], policy: Policy, count: int) -> Iterator[Landed]:
    """Fetch files, which have `count` bytes in total, and yield the result for each. The folders of their targets must
    exist.

    Raises BackendError if the machine is unreachable. After an error, the next fetch of a file resumes after the bytes
    that have arrived.
    """
    with machine.bulk(count) as fast:
        sent: deque[_Request] = deque()
        try:
            for batch in _batches(files, BATCH if fast.is_own else PIECE):
                sent.append(_Request(fast, batch, policy))
                if len(sent) == ON_THE_WAY:
                    yield from sent[0].landed()
                    sent.popleft()
            while sent:
                yield from sent[0].landed()
                sent.popleft()
        finally:
            for request in sent:
                request.leave()


def read_small(machine: Machine, below: str, paths: Sequence[str], most: int) -> list[bytes | None]:
    """Return the contents of small files; None for a file that is missing or larger than `most` bytes."""
    asked = [[0, path, 0, most + 1, None, ""] for path in paths]
    values, data = machine.call(
        "read_files", json.dumps(asked).encode(), below=[below], hashed=False, most=len(paths) * (most + 1)
    )
    found, offset = list[bytes | None](), 0
    for row in values["files"]:
        count = row[0] if row else 0
        found.append(data[offset : offset + count] if row and count <= most else None)
        offset += count
    if len(found) != len(paths) or offset != len(data):
        raise BackendError(f"{machine.name}: {NONSENSE}")
    return found


def _batches(files: Iterable[Wanted], most: int) -> Iterator[list[Wanted]]:
    batch: list[Wanted] = []
    size = 0
    for each in files:
        if batch and (size + each.size > most or len(batch) == MOST_FILES):
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += each.size
    if batch:
        yield batch


class _Row(NamedTuple):
    """A machine's answer about a file: the number of bytes that follow, its size and time, and whether this machine
    already has the same contents.
    """

    sent: int
    size: int
    mtime_ns: int
    is_known: bool = False


_GONE: Final = _Row(0, -1, 0)


class _File:
    """A file during its transfer: the bytes that have arrived, and the version on the machine."""

    def __init__(self, wanted: Wanted, policy: Policy) -> None:
        self.wanted, self.policy, self.is_right, self.count = wanted, policy, True, 0
        self.row = _Row(0, wanted.size, wanted.mtime_ns)  # the machine's last answer about the file
        self.facts = None if wanted.checksum or not policy.continued else (wanted.size, wanted.mtime_ns)
        algorithm = wanted.checksum.algorithm if wanted.checksum else Algorithm.SHA256
        self.most = wanted.size + ROOM * (not policy.continued)
        size = wanted.size if policy.continued else 0  # the most that an interrupted copy may have left
        self.arriving = Arriving(
            wanted.target, wanted.version, size, algorithm,
            durable=policy.durable, mode=policy.mode, folder=wanted.folder,
        )  # fmt: skip
        self.was_begun = self.arriving.size > 0

    @property
    def is_unproved(self) -> bool:
        """Return True if the transfer is complete but was resumed, so that no checksum covers the whole file."""
        is_whole = self.is_right and self.arriving.problem is None and self.arriving.size == self.row.size
        return self.was_begun and is_whole and self.wanted.checksum is None and not self.row.is_known

    @property
    def lacks(self) -> bool:
        """Return True if the file lacks bytes that another request may bring."""
        may_come = self.is_right and not self.row.is_known and self.arriving.problem is None
        return may_come and self.arriving.size < self.row.size

    def asked(self, folder: int, most: int) -> list[Any]:
        """Return the file's entry for the next request, which asks for at most `most` bytes."""
        size = self.most if self.facts is None else self.facts[0]
        self.count = max(0, min(size - self.arriving.size, most))
        return [folder, self.wanted.path, self.arriving.size, self.count, self.facts, self.wanted.known]

    def take(self, row: _Row, stream: Any) -> None:
        """Write the part of an answer that belongs to the file."""
        self.row = row
        if row is _GONE or row.is_known:
            return
        facts = (row.size, row.mtime_ns)
        self.facts = self.facts or facts
        self.is_right &= facts == self.facts and 0 <= row.size <= self.most and abs(row.mtime_ns) < 1 << 62
        part = hashlib.sha256() if self.policy.hashed and self.arriving.size else None
        self.arriving.fill(stream, row.sent, part)
        if self.policy.hashed:
            self.is_right &= stream.read(HASH_BYTES) == bytes.fromhex((part or self.arriving.digest).hexdigest())
        self.is_right &= row.sent > 0 or not self.lacks

    def land(self) -> Landed:
        """Rename the file to its final name if its contents are right."""
        arriving, row, checksum = self.arriving, self.row, self.wanted.checksum
        if row.is_known:
            arriving.drop()
            return Landed(self.wanted, self.wanted.known, row.size, row.mtime_ns, is_known=True)
        digest = arriving.digest.hexdigest()
        is_whole = self.is_right and arriving.size == row.size and (checksum is None or checksum.hex == digest)
        if arriving.problem is None and not is_whole:
            arriving.drop()
            return Landed(self.wanted, is_continued=self.was_begun)
        try:
            mode = 0o700 if self.wanted.executable else None
            arriving.finish(row.mtime_ns if self.policy.hashed else None, mode)
        except OSError as error:
            return Landed(self.wanted, problem=error)
        return Landed(self.wanted, digest, row.size, row.mtime_ns, is_continued=self.was_begun)


class _Request:
    """Files that are requested together. The request is repeated as long as a file lacks bytes."""

    def __init__(self, machine: Machine, files: Sequence[Wanted], policy: Policy) -> None:
        self.machine, self.policy = machine, policy
        self.refused, self.files = list[Landed](), list[_File]()
        for each in files:
            try:
                self.files.append(_File(each, policy))
            except OSError as error:
                self.refused.append(Landed(each, problem=error))
        self.is_nonsense = False
        self._ask(self.files)

    def _ask(self, files: list[_File]) -> None:
        self.asked = files
        below = list({each.wanted.below: None for each in files})
        most = PIECE if not self.machine.is_own else MOST
        items = [each.asked(below.index(each.wanted.below), most) for each in files]
        count = sum(each.count for each in files)
        known = sum(each.wanted.size for each in files if each.wanted.known)
        self.patience = CALL_SECONDS + count / SLOWEST + known / HASH_SLOWEST + PATIENCE
        self.answer = self.machine.ask(
            "read_files", json.dumps(items).encode(), below=below, hashed=self.policy.hashed, still=self.policy.still,
            sink=self._take, most=count + HASH_BYTES * len(files),
        )  # fmt: skip

    def _take(self, values: Mapping[str, Any], stream: Any, count: int) -> None:
        rows = [_Row(*row) if row else _GONE for row in values.get("files", ())]
        hashes = sum(HASH_BYTES for row in rows if self.policy.hashed and row is not _GONE and not row.is_known)
        fits = all(0 <= row.sent <= each.count for row, each in zip(rows, self.asked, strict=False))
        if len(rows) == len(self.asked) and fits and sum(row.sent for row in rows) + hashes == count:
            for each, row in zip(self.asked, rows, strict=True):
                each.take(row, stream)
            return
        self.is_nonsense = True
        while count and (data := stream.read(min(count, PIECE))):
            count -= len(data)

    def landed(self) -> Iterator[Landed]:
        """Wait for the answer, and yield the result for each file."""
        yield from self.refused
        while self.asked:
            self.answer.wait(self.patience)
            if self.is_nonsense:
                raise BackendError(f"{self.machine.name}: {NONSENSE}")
            if not (lacking := [each for each in self.asked if each.lacks]):
                break
            self._ask(lacking)
        while self.files:
            if self.files[0].is_unproved:
                self._compare(self.files[0])
            yield self.files.pop(0).land()

    def _compare(self, file: _File) -> None:
        """Have the machine compare a resumed file with the original, because no hash covers the bytes before the
        interruption.
        """
        wanted, digest = file.wanted, file.arriving.digest.hexdigest()
        row = json.dumps([[0, wanted.path, 0, 0, file.facts, digest]]).encode()
        patience = CALL_SECONDS + wanted.size / HASH_SLOWEST
        values, _ = self.machine.call("read_files", row, timeout=patience, below=[wanted.below], hashed=False, most=0)
        rows = [_Row(*row) for row in values["files"] if row]
        file.is_right &= bool(rows) and rows[0].is_known

    def leave(self) -> None:
        """Close the files. Bytes that have arrived are kept, unless they are known to be wrong."""
        for each in self.files:
            is_kept = self.policy.continued and each.is_right and each.arriving.size
            each.arriving.leave() if is_kept else each.arriving.drop()
