"""Copies each checkpoint to a second machine: node 0's agent sends it to node 1, if the nodes share no folder.

Node 1 verifies every byte and stores the checkpoint in the folder that its own ranks read. If node 0 is lost with its
disk, node 1 can take over as node 0, even if the submitting machine was not connected to copy the checkpoint. After one
copy has failed, no more copies are tried in the same attempt, because each try would slow down the training's disk and
network.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import Any, Callable

from orchestrator.node.agent.checkpoints.transfer import FAILURES, Address, Parcel, orchs_parcel, parcel_of, send
from orchestrator.node.agent.tls import Tls
from orchestrator.node.system.threads import in_thread
from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT, committed
from orchestrator.protocol.checkpoints.formats import Format
from orchestrator.protocol.checkpoints.of_run import Places
from orchestrator.protocol.checkpoints.search import Saved, files_of
from orchestrator.protocol.events import Event, SecondCopyFailed
from orchestrator.protocol.files import overwrite_line
from orchestrator.protocol.layout import second_copy_file
from orchestrator.protocol.reading import MOST_WORD, read_regular
from orchestrator.protocol.task import NodeTask

LOOK_SECONDS = 0.2
# The minimum pause between two searches of the run's folders. After a slow search, the pause is 9 times its duration.
LOOK_AROUND_SECONDS = 1.0
MOST_NAMED = 100
WORD_BYTES = 4096  # the size of the report to rank 0, which overwrites the previous report
PROBLEM_CHARS = 300  # a character takes up to six bytes in JSON


class ReplicaSender:
    """Copies checkpoints from node 0 to node 1. It remembers which checkpoints it has seen, and the error after which
    copying stopped.
    """

    def __init__(self, task: NodeTask, tls: Tls, record: Callable[[Event], None]) -> None:
        self.task, self.tls, self.record = task, tls, record
        self.known: set[tuple[str, int]] = set()
        self.problem = ""
        self._tell({})

    def begin_attempt(self) -> None:
        """If copying has failed in an earlier attempt, allow copies again, beginning with the newest checkpoint."""
        if self.problem:
            self.problem, self.known = "", set()

    def _fail(self, checkpoint: str, reason: str) -> None:
        """Record that a copy failed, and stop copying for the rest of this attempt."""
        if not self.problem:
            self.problem = reason
            self.record(SecondCopyFailed(checkpoint, reason))

    def _tell(self, values: dict[str, Any]) -> None:
        """Write the state of the copies to a file that rank 0 reads. If the file can't be written, rank 0 waits as if
        the copy were slow.
        """
        told = second_copy_file(self.task.run_dir)
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(told), exist_ok=True)
            overwrite_line(told, values, WORD_BYTES)

    async def keep_up(self, addrs: tuple[str, ...], port: int) -> None:
        """Until cancelled, send each checkpoint to node 1 soon after its commit, the newest first.

        This polls the folder, because ranks do not report their saves.
        """
        folder = Places.of(self.task).checkpoints
        while True:
            if not self.problem:
                found = _committed(folder)
                new = max(found - self.known, default=None)
                self.known = found
                if new is not None:
                    await self._hand_over(f"{folder}/{new[0]}", addrs, port)
            await asyncio.sleep(LOOK_SECONDS)

    async def keep_up_with_others(self, addrs: tuple[str, ...], port: int) -> None:
        """Until cancelled, send the newest checkpoint that is not in orch's format to node 1. It is sent once two
        consecutive polls have found the same files.
        """
        before: object = None
        sent: object = None
        while True:
            started = time.monotonic()
            found = {} if self.problem else await in_thread(self._others)
            name = next(iter(found), None)
            files = await in_thread(files_of, found[name]) if name is not None else {}
            seen = name and (name, found[name].time, files)
            if name is not None and seen == before != sent:
                keeps = list(found) if len(found) <= MOST_NAMED else None
                said = await self._send((1, addrs, port), parcel_of, name, found[name], keeps=keeps)
                sent = seen if not said else sent
                # If the files differ now, the program has changed the checkpoint during the copy.
                if said and await in_thread(files_of, found[name]) == files:
                    self._fail(name, said)
            before = seen
            await asyncio.sleep(max(LOOK_AROUND_SECONDS, 9 * (time.monotonic() - started)))

    def _others(self) -> dict[str, Saved]:
        """Return the run's checkpoints in other frameworks' formats, the newest first. Checkpoints in orch's format are
        not included.
        """
        found = Places.of(self.task).own()
        return {name: saved for name, saved in found.items() if saved.format is not Format.ORCH}

    async def _hand_over(self, path: str, addrs: tuple[str, ...], port: int) -> None:
        started, commit = time.monotonic(), ""
        try:
            commit = read_regular(f"{path}/{COMMIT}", MOST_WORD, os.path.dirname(path)).decode()
        except OSError as error:
            problem = str(error)
        else:
            problem = await self._send((1, addrs, port), orchs_parcel, path, replaces=True)
        if problem and not os.path.exists(f"{path}/{COMMIT}"):
            return  # this checkpoint was deleted because newer ones exist; the newest is copied next
        name = os.path.basename(path)
        if problem:
            self._fail(name, problem)
        seconds = time.monotonic() - started
        self._tell({"checkpoint": name, "commit": commit, "problem": problem[:PROBLEM_CHARS], "seconds": seconds})

    async def _send(self, to: Address, parcel: Callable[..., Parcel], *of: Any, **how: Any) -> str:
        """Send a checkpoint. Return an error message, or "" if the checkpoint was sent."""
        try:
            await send(self.tls, to, await in_thread(parcel, *of), **how)
        except FAILURES as error:
            return str(error) or type(error).__name__
        return ""


def _committed(folder: str) -> set[tuple[str, int]]:
    """Return (name, time of commit) of each checkpoint. An overwritten checkpoint counts as new."""
    found = set()
    for name in committed(folder):
        with contextlib.suppress(OSError):  # deleted meanwhile
            found.add((name, os.stat(f"{folder}/{name}/{COMMIT}").st_mtime_ns))
    return found
