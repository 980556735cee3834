"""The controlling side's copy of what a node writes: continued by offset, so that either side may die at any moment."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import BackendError
from orchestrator.node.mirror import tail_hash
from orchestrator.session import Session
from orchestrator.store import RunDir, write_durably

STAMPS: Final = "copied.json"
PIECE: Final = 4 << 20
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
        for path in [*paths, *([self.run.path / "metrics.jsonl"] if self.node == 0 else [])]:
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
        if not plain or not (name.startswith(own) or name in ("metrics.jsonl", "result.json", "rank0.done")):
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
    files, name = json.loads(manifest)["files"], f"step_{json.loads(manifest)['step']:08}"
    if name != target.name or any(Path(each).name != each for each in files):
        return False  # put together from another one's files
    if (target / "COMMIT").exists() and (target / "COMMIT").read_bytes() == commit:
        return True
    target.mkdir(parents=True, exist_ok=True)
    for each, entry in files.items():
        if not _bring_file(session, f"{remote}/{each}", target / each, entry):
            shutil.rmtree(target)
            return False
    write_durably(target / "manifest.json", manifest)
    write_durably(target / "COMMIT", commit)
    return True


def _whole(session: Session, path: str) -> bytes:
    return session.call("read", path=path, offset=0, count=PIECE)[1]


def _bring_file(session: Session, remote: str, target: Path, entry: Mapping[str, Any]) -> bool:
    partial = target.with_name(f".{target.name}.{entry['sha256'][:16]}.partial")
    digest, size = hashlib.sha256(), int(entry["bytes"])
    with open(partial, "a+b") as file:
        file.seek(0)
        while block := file.read(PIECE):
            digest.update(block)
        while (offset := file.tell()) < size:
            try:
                reply, data = session.call("read", path=remote, offset=offset, count=min(PIECE, size - offset))
            except BackendError as error:
                if error.transient:
                    raise
                break
            if not data or reply["size"] != size:
                break
            digest.update(data)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != entry["sha256"]:
        partial.unlink()
        return False
    os.replace(partial, target)
    return True


def give_checkpoint(session: Session, source: Path, remote: str) -> None:
    """Send one committed checkpoint to a machine, its COMMIT last."""
    names = sorted((path.name for path in source.iterdir() if path.is_file()), key=lambda name: name == "COMMIT")
    for name in names:
        with open(source / name, "rb") as file:
            size, offset = os.fstat(file.fileno()).st_size, 0
            while True:
                data = file.read(PIECE)
                last = offset + len(data) >= size
                session.call("put", data, path=f"{remote}/{name}", offset=offset, last=last)
                offset += len(data)
                if last:
                    break
