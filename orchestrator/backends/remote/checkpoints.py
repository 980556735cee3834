"""Checkpoints between a run's machines and here: brought as they are committed, given to a start that goes on."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import BackendError
from orchestrator.node.server.files import WHOLE
from orchestrator.protocol.checkpoints import checkpoint_dir
from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT, MANIFEST, is_committed, newest
from orchestrator.protocol.checkpoints.checksum import Checksum, Hasher, NotInstalledError, hasher
from orchestrator.protocol.events import Collected
from orchestrator.protocol.metric import kept_by
from orchestrator.protocol.reading import MOST_WORD, opened, read_regular
from orchestrator.runs.store import RunDir, write_durably
from orchestrator.transport.machine import CALL_SECONDS, SLOWEST, Machine, Reply

PIECE: Final = 1 << 20
ON_THE_WAY: Final = 8  # pieces that are asked for, or sent, before the first of them is answered
MOST: Final = 1 << 40

# -- which of them, and where


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest committed checkpoint of a folder here; None when there is none."""
    name = newest(folder)
    return None if name is None else folder / name


def remote_checkpoints(run: RunDir) -> str:
    """Return where rank 0 keeps its checkpoints on its node."""
    task = run.plan().first
    folder = task.checkpoint_dir
    return folder if folder.startswith(("/", "~")) or not folder else f"{task.code_dir}/{folder}"


# -- brought here


def bring_newest(run: RunDir, session: Machine, folder: str, steps: list[str], most: int | None = None) -> None:
    """Copy the newest `most` of these checkpoints that verify, the newest first, and keep as many as the job keeps."""
    here = 0
    for step in sorted(steps, reverse=True):
        target = run.path / "checkpoints" / Path(step).name
        if not is_committed(target):
            if not bring_checkpoint(session, f"{folder}/{step}", target):
                continue
            run.append_event(Collected(int(target.name.removeprefix("step_"))))
        here += 1
        if here == most:
            break
    _keep_newest(run, is_all=most is None)


def _keep_newest(run: RunDir, *, is_all: bool) -> None:
    """Remove copies beyond the number that the job keeps. Once all are here, remove partial copies too."""
    folder = run.path / "checkpoints"
    here = checkpoint_dir.committed(folder)
    task = run.plan().first
    best = checkpoint_dir.best_of(folder, here, kept_by(task.checkpoint_best, task.checkpoint_better))
    surplus = checkpoint_dir.surplus(here, task.checkpoint_keep, best)
    torn = set(checkpoint_dir.step_folders(folder)) - set(here) if is_all else set()
    for name in (*surplus, *torn):
        checkpoint_dir.delete(folder / name)


def bring_checkpoint(session: Machine, remote: str, target: Path) -> bool:
    """Copy one committed checkpoint and verify it, its COMMIT last; False when it went away meanwhile.

    What an interrupted copy has left is continued.
    """
    folder = remote.rpartition("/")[0]
    try:
        commit = _whole(session, f"{remote}/{COMMIT}", folder)
        manifest = _whole(session, f"{remote}/{MANIFEST}", folder)
    except BackendError as error:
        if error.transient:
            raise
        return False
    if hashlib.sha256(manifest).hexdigest() != commit.decode("ascii", "replace").strip():
        return False
    files = _files(manifest, target.name)
    if files is None:
        return False
    with contextlib.suppress(OSError):
        if read_regular(target / COMMIT, MOST_WORD, target.parent) == commit:
            return True
    target.mkdir(parents=True, exist_ok=True)
    with session.bulk(sum(size for size, _ in files.values())) as fast:
        for each, (size, checksum) in files.items():
            if not bring_file(fast, f"{remote}/{each}", target / each, size, checksum, folder):
                shutil.rmtree(target)
                return False
    write_durably(target / MANIFEST, manifest)
    write_durably(target / COMMIT, commit)
    return True


def _whole(session: Machine, path: str, below: str) -> bytes:
    return session.call("read_file", path=path, below=below, most=WHOLE)[1]


def _files(manifest: bytes, name: str) -> dict[str, tuple[int, Checksum]] | None:
    """Return (bytes, checksum) of each file of the checkpoint; None where it is another's, or names others' files."""
    try:
        found = checkpoint_dir.manifest_of(manifest)
    except checkpoint_dir.BadCheckpointError:
        return None
    if checkpoint_dir.step_of(name) != found.step:
        return None
    return {each: (entry["bytes"], Checksum.of(entry)) for each, entry in found.files.items()}


def bring_file(session: Machine, remote: str, target: Path, size: int, checksum: Checksum, below: str) -> bool:
    """Continue the copy of a file. Return False if the file differs from the promised one.

    `below` is a folder on the machine. No link below it is followed.
    """
    digest, partial = _hasher(target, checksum), partial_of(target, checksum.hex)
    with open(partial, "a+b", buffering=0) as file, ThreadPoolExecutor(1) as pool:
        copy = _HashedCopy(file, pool, digest)
        try:
            while copy.size < size:
                count, before = min(size - copy.size, MOST if session.is_own else PIECE), copy.size
                answer = session.ask(
                    "read_range", path=remote, below=below, offset=before, count=count, most=count, sink=copy.take
                )
                reply, _ = answer.wait(CALL_SECONDS + count / SLOWEST)
                if reply["size"] != size or copy.size == before:
                    break
        except BackendError as error:
            if error.transient:
                raise
        copy.sync()
    if digest.hexdigest() != checksum.hex:
        partial.unlink()
        return False
    os.replace(partial, target)
    return True


def _hasher(target: Path, checksum: Checksum) -> Hasher:
    try:
        return hasher(checksum.algorithm)
    except NotInstalledError as error:
        raise BackendError(f"{target} can't be verified: {error}") from error


def partial_of(target: Path, digest: str) -> Path:
    """Return where a file of this hash is while it is being copied; what is there is gone on with."""
    return target.with_name(f".{target.name}.{digest[:16]}.partial")


class _HashedCopy:
    """A file that is being copied: its size and hash as far as it is here."""

    def __init__(self, file: io.FileIO, pool: ThreadPoolExecutor, digest: Hasher) -> None:
        self.file, self.digest, self.size = file, digest, 0
        self.pool, self.synced = pool, pool.submit(_sync, file)
        self.problem: OSError | None = None
        self.room = memoryview(bytearray(PIECE))  # used again and again: new memory costs more than the copy
        file.seek(0)
        while count := file.readinto(self.room):
            self.digest.update(self.room[:count])
            self.size += count

    def take(self, stream: Any, count: int) -> None:
        """Take so many bytes from the stream, also where they can't be written."""
        while count > 0:
            got = stream.readinto(self.room[: min(count, PIECE)])
            if not got:
                raise EOFError("the connection was closed")
            data = self.room[:got]
            count -= got
            if self.problem is not None:
                continue
            try:
                while data:
                    written = self.file.write(data)
                    self.digest.update(data[:written])
                    self.size += written
                    data = data[written:]
                if self.synced.done():  # the disk is at work while more comes, so that the last sync has little to do
                    self.synced.result()
                    self.synced = self.pool.submit(_sync, self.file)
            except OSError as error:
                self.problem = error

    def sync(self) -> None:
        """Have all of it on the disk; BackendError where it could not be written."""
        try:
            if self.problem is not None:
                raise self.problem
            self.synced.result()
            _sync(self.file)
        except OSError as error:
            raise BackendError(f"{self.file.name}: {error.strerror}", "make room there") from error


def _sync(file: io.FileIO) -> int:
    os.fsync(file.fileno())
    return 0


# -- given to a machine


def give_checkpoint(session: Machine, source: Path, remote: str) -> None:
    """Send one committed checkpoint to a machine, its COMMIT last."""
    files = sorted((path for path in source.iterdir() if path.is_file()), key=lambda path: path.name == COMMIT)
    with session.bulk(sum(path.stat().st_size for path in files)) as fast:
        for path in files:
            give_file(fast, path, f"{remote}/{path.name}")


def give_file(session: Machine, source: Path, remote: str) -> None:
    """Send a file: its first piece makes it new there, its last one, sent when all others are there, names it."""
    sent: deque[Reply] = deque()
    with opened(source) as file:
        size, offset = os.fstat(file.fileno()).st_size, 0
        while True:
            data = file.read(PIECE)
            last = offset + len(data) >= size
            while sent and (last or len(sent) >= ON_THE_WAY):
                sent.popleft().wait(CALL_SECONDS + ON_THE_WAY * PIECE / SLOWEST)
            answer = session.ask("write_file", data, path=remote, offset=offset, last=last)
            if last or offset == 0:
                answer.wait()
            else:
                sent.append(answer)
            offset += len(data)
            if last:
                return
