"""Copies the growing files of a node, its logs and records, to the submitting machine. After a crash of either
machine, copying resumes at the same offset.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.errors import BackendError
from orchestrator.node.server.files import MOST_OF_A_LOOK, files_of, is_appended, is_of_progress, tail_hash
from orchestrator.protocol.checkpoints.checkpoint_dir import step_of
from orchestrator.protocol.files import locked, write_atomic
from orchestrator.protocol.reading import open_own
from orchestrator.runs.store import RunDir

if TYPE_CHECKING:
    from orchestrator.transport.machine import Machine

WRITING: Final = "logs.lock"  # this lock is held while growing files are measured or appended to
ANSWER_SECONDS: Final = 8.0  # a machine that takes longer to report that nothing is new counts as unreachable


class Copy:
    """The copy of one node's files of a run. `ranks` are the ranks whose logs are copied; None for all.

    Several processes may update the copy at once, such as the supervisor and a command that shows another rank's log.
    """

    def __init__(self, run: RunDir, node: int, remote: str, checkpoints: str, ranks: list[int] | None) -> None:
        self.run, self.node, self.remote, self.ranks = run, node, remote, ranks
        self.checkpoints = checkpoints if node == 0 else ""
        self.stamps: dict[str, str] = {}
        self.start: int | None = None  # the start whose agent is checked; None: the newest
        self.agent: tuple[int, int] | None = None  # pid and start time, if they are recorded on this machine
        self.alive: bool | None = None
        self.steps: list[str] = []
        self.has_news = False  # whether the last update brought more than the ranks' progress and logs

    def update(self, machine: Machine, wait: float, *, only_logs: bool = False) -> bool:
        """Copy new parts, after waiting up to `wait` seconds for them. Return True if the machine has more to copy."""
        try:
            with locked(self.run.path / WRITING):
                sizes = self._sizes()
                have = self._have(sizes)
            reply, data = machine.call(
                "poll_changes", timeout=wait + ANSWER_SECONDS, run_dir=self.remote, node=self.node, have=have,
                start=self.start, agent=self.agent, ranks=self.ranks, wait=wait, alive=self.alive, steps=self.steps,
                most=MOST_OF_A_LOOK, checkpoints="" if only_logs else self.checkpoints, only_logs=only_logs,
            )  # fmt: skip
            with locked(self.run.path / WRITING):
                self._keep_all(reply["files"], data, sizes)
        except ValueError as error:
            raise BackendError(f"{machine.name}: {error}") from error
        except OSError as error:
            raise BackendError(
                f"{error.filename or self.run.path}: {error.strerror}", "make room on that disk"
            ) from error
        self.has_news = any(not is_of_progress(name) for name, *_ in reply["files"])
        self.alive = reply["alive"]
        if not only_logs:
            self.steps = [step for step in reply["steps"] if step_of(step) is not None]
        return bool(reply["more"])

    def _have(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        have: dict[str, Any] = dict(self.stamps)
        for name, size in sizes.items():
            if size:
                have[name] = [size, tail_hash(str(self.run.path / name), size, str(self.run.path))]
        folder = self.run.node(self.node)
        for path in [*folder.glob("attempt_*/rank_*.log.1"), *folder.glob("samples.jsonl.1")]:
            have[str(path.relative_to(self.run.path))] = True
        return have

    def _sizes(self) -> dict[str, int]:
        """Return the size of each growing file on this machine."""
        here = files_of(str(self.run.path), self.node)
        return {name: (self.run.path / name).stat().st_size for name, grows in here if grows}

    def _keep_all(self, files: list[list[Any]], data: bytes, asked: Mapping[str, int]) -> None:
        """Write the parts that have arrived. Raises ValueError if a part belongs to a file that nodes never write, and
        OSError if this machine's disk fails.

        `asked`: the offset at which the part of each file begins. If another process has appended to a file meanwhile,
        the file is skipped.
        """
        offset, now = 0, self._sizes()
        others = {
            name for name, *_ in files if now.get(name, 0) != asked.get(name, 0)
        }  # a file that was rotated meanwhile is missing, and counts as empty
        for name, size, at, stamp, rotated in files:
            if size < 0 or offset + size > len(data) or (at is not None and at < 0):
                raise ValueError(f"the data of {name!r} is shorter than announced")
            if name not in others:
                self._keep(name, data[offset : offset + size], at, stamp, rotated)
            offset += size

    def _keep(self, name: str, data: bytes, at: int | None, stamp: str, rotated: bool) -> None:
        path = self._inside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if at is None:
            write_atomic(path, data, durable=False)  # a crash costs no more than this copy, which is then made again
            self.stamps[name] = stamp
            return
        with open(open_own(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
            file.truncate(at)
            file.seek(at)
            file.write(data)
        if rotated:
            os.replace(path, path.with_name(f"{path.name}.1"))

    def _inside(self, name: str) -> Path:
        """Return the path on this machine for a file that the node has named. Raises ValueError if nodes never write a
        file of this name.
        """
        if is_appended(self.node, name) is None:
            raise ValueError(f"node {self.node} sent a file name that a node may not use: {name[:200]!r}")
        return self.run.path / name


def update_all(copies: Sequence[Copy], machine: Machine, wait: float = 0.0, *, only_logs: bool = False) -> None:
    """Update all copies. If there is only one copy, wait up to `wait` seconds for new parts."""
    for copy in copies:
        more = copy.update(machine, wait if len(copies) == 1 else 0.0, only_logs=only_logs)
        while more:
            more = copy.update(machine, 0.0, only_logs=only_logs)
