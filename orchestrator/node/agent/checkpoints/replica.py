"""The second copy of each checkpoint: node 0's agent sends it to node 1, if the nodes share no folder.

Node 1 verifies every byte and puts the checkpoint where its own ranks would look for it. So node 1 can
become the next node 0 if this node is lost with its disk, even if no other machine was connected. After a copy has
failed, no other copy is tried in the same attempt, because each try would slow the training's disk and network.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import time
from typing import Any, Callable

from orchestrator.node.agent import neighbour
from orchestrator.node.agent.channel import Channel, ChannelError, Message
from orchestrator.node.agent.checkpoints.transfer import (
    REFUSED,
    Address,
    answer_of,
    manifest_of,
    receive_file,
    send,
    send_file,
)
from orchestrator.node.agent.tls import Tls
from orchestrator.node.system.threads import in_thread
from orchestrator.protocol.checkpoints.checkpoint_dir import (
    COMMIT,
    MANIFEST,
    best_of,
    committed,
    delete,
    step_of,
    surplus,
    temporary_name,
)
from orchestrator.protocol.checkpoints.formats import Format
from orchestrator.protocol.checkpoints.of_run import Places
from orchestrator.protocol.checkpoints.search import Saved, files_of
from orchestrator.protocol.events import Event, SecondCopyFailed
from orchestrator.protocol.files import overwrite_line
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import second_copy_file
from orchestrator.protocol.metric import kept_by
from orchestrator.protocol.reading import MOST_RECORD, read_regular
from orchestrator.protocol.task import NodeTask

LOOK_SECONDS = 0.2
LOOK_AROUND_SECONDS = 1.0  # between two looks into all folders of the run, or nine times as long as one takes
MOST_NAMED = 100
WORD_BYTES = 4096  # of what rank 0 is told, written in place
PROBLEM_CHARS = 300  # six bytes each as JSON, at most


# -- node 0


class ReplicaSender:
    """Node 0's side: the checkpoints to be copied, and the problem after which no further copy is tried."""

    def __init__(self, task: NodeTask, tls: Tls, record: Callable[[Event], None]) -> None:
        self.task, self.tls, self.record = task, tls, record
        self.known: set[tuple[str, int]] = set()
        self.problem = ""
        self._tell({})

    def begin_attempt(self) -> None:
        """Try again, beginning with the newest checkpoint that was not copied."""
        if self.problem:
            self.problem, self.known = "", set()

    def _fail(self, checkpoint: str, reason: str) -> None:
        """Record that a copy failed, and that no further copy is tried in this attempt."""
        if not self.problem:
            self.problem = reason
            self.record(SecondCopyFailed(checkpoint, reason))

    def _tell(self, values: dict[str, Any]) -> None:
        """Report to rank 0. If the report can't be written, rank 0 waits as long as for a slow copy."""
        told = second_copy_file(self.task.run_dir)
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(told), exist_ok=True)
            overwrite_line(told, values, WORD_BYTES)

    async def keep_up(self, addrs: tuple[str, ...], port: int) -> None:
        """Hand each checkpoint to node 1 soon after its commit, the newest first, until cancelled.

        It looks, because ranks say what they have saved in no other way than by saving it.
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
        """Hand the newest checkpoint of another format to node 1, once it is the same in two looks, until cancelled."""
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
                said = await self._send_saved(name, found[name], (1, addrs, port), keeps)
                sent = seen if not said else sent
                if said and await in_thread(files_of, found[name]) == files:  # otherwise the program has changed it
                    self._fail(name, said)
            before = seen
            await asyncio.sleep(max(LOOK_AROUND_SECONDS, 9 * (time.monotonic() - started)))

    def _others(self) -> dict[str, Saved]:
        """Return the run's checkpoints but for orch's own, which lie in one folder, the newest first."""
        found = Places.of(self.task).own()
        return {name: saved for name, saved in found.items() if saved.format is not Format.ORCH}

    async def _send_saved(self, name: str, saved: Saved, to: Address, keeps: list[str] | None) -> str:
        """Return what went wrong, in words; empty where nothing did."""
        try:
            await send(self.tls, to, await in_thread(manifest_of, name, saved), keeps=keeps)
        except (OSError, ValueError, RuntimeError, KeyError, ChannelError) as error:  # as above
            return str(error) or type(error).__name__
        return ""

    async def _hand_over(self, path: str, addrs: tuple[str, ...], port: int) -> None:
        started, problem, commit = time.monotonic(), "", ""
        try:
            commit = _text_of(f"{path}/{COMMIT}")
            await self._send(path, commit, addrs, port)
        except (OSError, ValueError, RuntimeError, KeyError, ChannelError) as error:  # asyncio's closed transport
            if not os.path.exists(f"{path}/{COMMIT}"):
                return  # this checkpoint was deleted because newer ones exist; the newest is copied next
            problem = str(error) or type(error).__name__
        name = os.path.basename(path)
        if problem:
            self._fail(name, problem)
        seconds = time.monotonic() - started
        self._tell({"checkpoint": name, "commit": commit, "problem": problem[:PROBLEM_CHARS], "seconds": seconds})

    async def _send(self, path: str, commit: str, addrs: tuple[str, ...], port: int) -> None:
        manifest = _text_of(f"{path}/{MANIFEST}")
        files = parse_json(manifest)["files"]
        request = {"do": "keep", "checkpoint": os.path.basename(path), "manifest": manifest, "commit": commit}
        channel = await neighbour.request(self.tls, addrs, port, 1, request)
        try:
            for name in (await answer_of(channel, 1))["wanted"]:
                size = int(files[name]["bytes"])
                sent = await send_file(channel, f"{path}/{os.path.basename(name)}", size)
                if sent != size:  # node 1 would wait for the rest for ever
                    raise ValueError(f"{name} has {sent} bytes, and its manifest says {size}")
            await answer_of(channel, 1)
        finally:
            await channel.close()


def _committed(folder: str) -> set[tuple[str, int]]:
    """(name, when it was committed) of each checkpoint: one that is written again is another one."""
    found = set()
    for name in committed(folder):
        with contextlib.suppress(OSError):  # deleted meanwhile
            found.add((name, os.stat(f"{folder}/{name}/{COMMIT}").st_mtime_ns))
    return found


# -- node 1


class ReplicaReceiver:
    """Node 1's side: takes what its neighbour server is handed."""

    def __init__(self, task: NodeTask) -> None:
        self.task = task
        self.lock = asyncio.Lock()

    async def take(self, request: Message, channel: Channel) -> None:
        """Take one checkpoint in; the neighbour is told what is in the way."""
        if request.get("do") != "keep":
            return
        try:
            async with self.lock:
                await self._keep(request, channel)
        except REFUSED as error:
            channel.send({"problem": str(error) or type(error).__name__})
        with contextlib.suppress(OSError):
            await channel.writer.drain()

    async def _keep(self, request: Message, channel: Channel) -> None:
        name, manifest, commit = str(request["checkpoint"]), str(request["manifest"]), str(request["commit"])
        folder = Places.of(self.task).checkpoints
        if step_of(name) is None or hashlib.sha256(manifest.encode()).hexdigest() != commit.strip():
            raise ValueError(f"{name} does not match its COMMIT")
        if _read(f"{folder}/{name}/{COMMIT}") == commit:  # where the folder is shared after all
            channel.send({"wanted": []})
            channel.send({"kept": name})
            return
        files = parse_json(manifest)["files"]
        if any(os.path.basename(each) != each or each in ("", ".", "..") for each in files):
            raise ValueError(f"{name} names files that are not in it")
        # The name of a writer's temporary folder, so that what is left of one that was killed is removed as such.
        temp = f"{folder}/{temporary_name('tmp', name)}"
        os.makedirs(temp, mode=0o700)
        try:
            channel.send({"wanted": list(files)})
            for each, entry in files.items():
                await receive_file(channel, f"{temp}/{each}", entry)
            await in_thread(_commit, temp, f"{folder}/{name}", manifest, commit)
        finally:
            await in_thread(shutil.rmtree, temp, True)
        await in_thread(self._prune, folder)
        channel.send({"kept": name})

    def _prune(self, folder: str) -> None:
        """Keep as many as the job keeps; what other runs have left in the folder is not ours to delete."""
        own = [name for name, _ in sorted(_committed(folder)) if self._is_ours(f"{folder}/{name}")]
        best = best_of(folder, own, kept_by(self.task.checkpoint_best, self.task.checkpoint_better))
        for name in surplus(own, self.task.checkpoint_keep, best):
            delete(f"{folder}/{name}")

    def _is_ours(self, path: str) -> bool:
        try:
            return bool(parse_json(_read(f"{path}/{MANIFEST}") or "{}").get("run") == self.task.run_id)
        except (ValueError, AttributeError):
            return False


def _commit(temp: str, path: str, manifest: str, commit: str) -> None:
    """Put a complete folder in place, over one of the same step that another start has left."""
    for name, text in ((MANIFEST, manifest), (COMMIT, commit)):
        with open(f"{temp}/{name}", "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    shutil.rmtree(path, ignore_errors=True)
    os.rename(temp, path)
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: str) -> str:
    try:
        return _text_of(path)
    except (OSError, ValueError):
        return ""


def _text_of(path: str) -> str:
    """Return a small text file of a checkpoint, FOLDER/step_00000001/NAME."""
    return read_regular(path, MOST_RECORD, path.rsplit("/", 2)[0]).decode()
