"""The controlling side's copy of what a node writes: continued by offset, so that either side may die at any moment."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import BackendError
from orchestrator.node.mirror import tail_hash
from orchestrator.session import CALL_SECONDS, SLOWEST, Reply, Session
from orchestrator.store import RunDir, write_durably

STAMPS: Final = "copied.json"
PIECE: Final = 1 << 20
ON_THE_WAY: Final = 8  # pieces that are asked for, or sent, before the first of them is answered
MOST: Final = 1 << 40
ANSWER_SECONDS: Final = 8.0  # a machine that takes longer to say that nothing is new is out of reach


class Copy:
    """The copy of one node's part of a run; `ranks` are those whose logs it takes, None for all."""

    def __init__(self, run: RunDir, node: int, remote: str, checkpoints: str, ranks: list[int] | None) -> None:
        self.run, self.node, self.remote, self.ranks = run, node, remote, ranks
        self.checkpoints = checkpoints if node == 0 else ""
        self.stamps: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.alive: bool | None = None
        self.steps: list[str] = []

    def look(self, session: Session, wait: float, *, only_logs: bool = False) -> bool:
        """Bring what is new, waiting up to `wait` seconds for it; is there more?"""
        reply, data = session.call(
            "look", timeout=wait + ANSWER_SECONDS, run_dir=self.remote, node=self.node, have=self._have(),
            ranks=self.ranks, wait=wait, alive=self.alive, steps=self.steps, checkpoints=self.checkpoints,
            only_logs=only_logs,
        )  # fmt: skip
        offset = 0
        for name, size, at, stamp, rotated in reply["files"]:
            self._keep(name, data[offset : offset + size], at, stamp, rotated)
            offset += size
        self.alive, self.steps = reply["alive"], reply["steps"]
        return bool(reply["more"])

    def _have(self) -> dict[str, Any]:
        have: dict[str, Any] = dict(self.stamps)
        for name in self._growing():
            path = self.run.path / name
            size = path.stat().st_size
            if size:
                have[name] = [size, tail_hash(str(path), size)]
        for path in self.run.node(self.node).glob("attempt_*/rank_*.log.1"):
            have[str(path.relative_to(self.run.path))] = True
        return have

    def _growing(self) -> Iterator[str]:
        folder = self.run.node(self.node)
        paths = [*folder.glob("attempt_*/rank_*.log"), *folder.glob("*.log"), folder / "events.jsonl"]
        whole = [self.run.path / "metrics.jsonl", *self.run.path.glob("slurm/*.log")] if self.node == 0 else []
        for path in [*paths, *whole]:
            if path.exists():
                yield str(path.relative_to(self.run.path))

    def _keep(self, name: str, data: bytes, at: int | None, stamp: str, rotated: bool) -> None:
        path = self._inside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if at is None:
            partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            partial.write_bytes(data)
            os.replace(partial, path)  # a crash costs no more than this copy, which is then made again
            self.stamps[name] = stamp
            return
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.truncate(at)
            file.seek(at)
            file.write(data)
        if rotated:
            os.replace(path, path.with_name(f"{path.name}.1"))

    def _inside(self, name: str) -> Path:
        """Where a file that the node names belongs; a name that leads elsewhere is refused."""
        own = f"nodes/{self.node}/"
        plain = not name.startswith("/") and ".." not in name.split("/")
        of_run = name.startswith("slurm/") or name in ("metrics.jsonl", "result.json", "rank0.done")
        if not plain or not (name.startswith(own) or of_run):
            raise ValueError(f"node {self.node} names a file that is not its own: {name!r}")
        return self.run.path / name


@contextmanager
def sole_writer(folder: Path, name: str) -> Iterator[None]:
    """Hold a lock of the run's folder: of two processes that bring the same files one waits."""
    with open(folder / name, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def bring_checkpoint(session: Session, remote: str, target: Path) -> bool:
    """Copy one committed checkpoint and verify it, its COMMIT last; False when it went away meanwhile.

    What an interrupted copy has left is continued.
    """
    try:
        commit = _whole(session, f"{remote}/COMMIT")
        manifest = _whole(session, f"{remote}/manifest.json")
    except BackendError as error:
        if error.transient:
            raise
        return False
    if hashlib.sha256(manifest).hexdigest() != commit.decode("ascii", "replace").strip():
        return False
    files = _files(manifest, target.name)
    if files is None:
        return False
    if (target / "COMMIT").exists() and (target / "COMMIT").read_bytes() == commit:
        return True
    target.mkdir(parents=True, exist_ok=True)
    with session.for_bytes(sum(size for size, _ in files.values())) as fast:
        for each, (size, sha256) in files.items():
            if not _bring_file(fast, f"{remote}/{each}", target / each, size, sha256):
                shutil.rmtree(target)
                return False
    write_durably(target / "manifest.json", manifest)
    write_durably(target / "COMMIT", commit)
    return True


def _whole(session: Session, path: str) -> bytes:
    return session.call("read", path=path)[1]


def _files(manifest: bytes, name: str) -> dict[str, tuple[int, str]] | None:
    """(bytes, sha256) of each file of the checkpoint `name`; None where it is another one's, or names others' files."""
    try:
        values = json.loads(manifest)
        files = {
            each: (int(entry["bytes"]), bytes.fromhex(entry["sha256"]).hex()) for each, entry in values["files"].items()
        }
        is_it = name == f"step_{values['step']:08}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    plain = all(Path(each).name == each and each not in ("", "..", "manifest.json", "COMMIT") for each in files)
    return files if is_it and plain else None


def _bring_file(session: Session, remote: str, target: Path, size: int, sha256: str) -> bool:
    """Go on with the copy of a file; False where it is not the file that was promised."""
    partial = target.with_name(f".{target.name}.{sha256[:16]}.partial")
    with open(partial, "a+b", buffering=0) as file, ThreadPoolExecutor(1) as pool:
        copy = _HashedCopy(file, pool)
        try:
            while copy.size < size:
                count, before = min(size - copy.size, MOST if session.is_own else PIECE), copy.size
                answer = session.ask("pour", path=remote, offset=before, count=count, sink=copy.take)
                reply, _ = answer.wait(CALL_SECONDS + count / SLOWEST)
                if reply["size"] != size or copy.size == before:
                    break
        except BackendError as error:
            if error.transient:
                raise
        copy.sync()
    if copy.digest.hexdigest() != sha256:
        partial.unlink()
        return False
    os.replace(partial, target)
    return True


class _HashedCopy:
    """A file that is being copied: its size and hash as far as it is here."""

    def __init__(self, file: io.FileIO, pool: ThreadPoolExecutor) -> None:
        self.file, self.digest, self.size = file, hashlib.sha256(), 0
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
        """All of it is on the disk; BackendError where it could not be written."""
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


def give_checkpoint(session: Session, source: Path, remote: str) -> None:
    """Send one committed checkpoint to a machine, its COMMIT last."""
    files = sorted((path for path in source.iterdir() if path.is_file()), key=lambda path: path.name == "COMMIT")
    with session.for_bytes(sum(path.stat().st_size for path in files)) as fast:
        for path in files:
            _give_file(fast, path, f"{remote}/{path.name}")


def _give_file(session: Session, source: Path, remote: str) -> None:
    """Send a file: its first piece makes it new there, its last one, sent when all others are there, names it."""
    sent: deque[Reply] = deque()
    with open(source, "rb") as file:
        size, offset = os.fstat(file.fileno()).st_size, 0
        while True:
            data = file.read(PIECE)
            last = offset + len(data) >= size
            while sent and (last or len(sent) >= ON_THE_WAY):
                sent.popleft().wait(CALL_SECONDS + ON_THE_WAY * PIECE / SLOWEST)
            answer = session.ask("put", data, path=remote, offset=offset, last=last)
            if last or offset == 0:
                answer.wait()
            else:
                sent.append(answer)
            offset += len(data)
            if last:
                return
