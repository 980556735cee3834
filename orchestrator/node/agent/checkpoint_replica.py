"""The second copy of each checkpoint: what node 0 commits is handed to node 1, where nodes share no folder.

Node 1 verifies every byte and puts the checkpoint where its own ranks would look for it. So it is the next node 0
where this one is lost with its disk, and nobody has to have been listening meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Awaitable
from typing import Any, Callable, TypeVar

from orchestrator.node.agent import neighbour
from orchestrator.node.agent.channel import Channel, ChannelError, Message
from orchestrator.node.agent.tls import Tls
from orchestrator.node.system.threads import in_thread
from orchestrator.protocol.checkpoint_dir import COMMIT, MANIFEST, committed, delete, step_of, surplus, temporary_name
from orchestrator.protocol.files import overwrite_line
from orchestrator.protocol.layout import second_copy_file
from orchestrator.protocol.task import NodeTask

LOOK_SECONDS = 0.2
WORD_BYTES = 4096  # of what rank 0 is told, written in place
STALLED_SECONDS = 120.0  # that a transfer may stand still, also while the other side writes to a slow disk
PROBLEM_CHARS = 300  # six bytes each as JSON, at most
PIECE = 1 << 20

T = TypeVar("T")


def checkpoint_folder(task: NodeTask) -> str:
    """Where the ranks of this node look for checkpoints: they run in the code folder."""
    return os.path.join(task.code_dir, task.checkpoint_dir)


# -- node 0


class ReplicaSender:
    """Node 0's side: what has been handed over, and where to."""

    def __init__(self, task: NodeTask, tls: Tls, record: Callable[..., None]) -> None:
        self.task, self.tls, self.record = task, tls, record
        self.known: set[tuple[str, int]] = set()
        self.problem = ""
        self._tell({})

    def _tell(self, values: dict[str, Any]) -> None:
        """Tell rank 0; where that fails, it waits as long as it waits for a copy that is slow."""
        told = second_copy_file(self.task.run_dir)
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(told), exist_ok=True)
            overwrite_line(told, values, WORD_BYTES)

    async def keep_up(self, addrs: tuple[str, ...], port: int) -> None:
        """Hand each checkpoint to node 1 soon after its commit, the newest first, until cancelled.

        It looks, because ranks say what they have saved in no other way than by saving it.
        """
        folder = checkpoint_folder(self.task)
        while True:
            found = _committed(folder)
            new = max(found - self.known, default=None)
            self.known = found
            if new is not None:
                await self._hand_over(f"{folder}/{new[0]}", addrs, port)
            await asyncio.sleep(LOOK_SECONDS)

    async def _hand_over(self, path: str, addrs: tuple[str, ...], port: int) -> None:
        started, problem, commit = time.monotonic(), "", ""
        try:
            with open(f"{path}/{COMMIT}", encoding="ascii") as file:
                commit = file.read()
            await self._send(path, commit, addrs, port)
        except (OSError, ValueError, RuntimeError, KeyError, ChannelError) as error:  # asyncio's closed transport
            problem = str(error) or type(error).__name__
        name = os.path.basename(path)
        if problem and problem != self.problem:
            self.record("second_copy_failed", checkpoint=name, reason=problem)
        self.problem = problem
        seconds = time.monotonic() - started
        self._tell({"checkpoint": name, "commit": commit, "problem": problem[:PROBLEM_CHARS], "seconds": seconds})

    async def _send(self, path: str, commit: str, addrs: tuple[str, ...], port: int) -> None:
        with open(f"{path}/{MANIFEST}", encoding="utf-8") as file:
            manifest = file.read()
        files = json.loads(manifest)["files"]
        request = {"do": "keep", "checkpoint": os.path.basename(path), "manifest": manifest, "commit": commit}
        channel = await neighbour.request(self.tls, addrs, port, 1, request)
        try:
            for name in (await _answer(channel))["wanted"]:
                size = int(files[name]["bytes"])
                sent = await _send_file(channel, f"{path}/{os.path.basename(name)}", size)
                if sent != size:  # node 1 would wait for the rest for ever
                    raise ValueError(f"{name} has {sent} bytes, and its manifest says {size}")
            await _answer(channel)
        finally:
            await channel.close()


async def _send_file(channel: Channel, path: str, size: int) -> int:
    """Send so many bytes of a file; return how many it had."""
    sent = 0
    with open(path, "rb") as file:
        while data := await in_thread(file.read, min(PIECE, size - sent)):
            channel.writer.write(data)
            await _in_time(channel.writer.drain(), "nothing was taken")
            sent += len(data)
    return sent


async def _in_time(step: Awaitable[T], what: str) -> T:
    """Return what a step of a transfer returns; ChannelError where it makes none for too long."""
    try:
        return await asyncio.wait_for(step, STALLED_SECONDS)
    except asyncio.TimeoutError as error:
        raise ChannelError(f"{what} for {STALLED_SECONDS:g} s") from error


async def _answer(channel: Channel) -> Message:
    answer = await channel.answer(STALLED_SECONDS)
    if answer.get("problem"):
        raise ChannelError(f"node 1: {answer['problem']}")
    return answer


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
        except (OSError, ValueError, KeyError, TypeError, ChannelError) as error:
            channel.send({"problem": str(error) or type(error).__name__})
        with contextlib.suppress(OSError):
            await channel.writer.drain()

    async def _keep(self, request: Message, channel: Channel) -> None:
        name, manifest, commit = str(request["checkpoint"]), str(request["manifest"]), str(request["commit"])
        folder = checkpoint_folder(self.task)
        if step_of(name) is None or hashlib.sha256(manifest.encode()).hexdigest() != commit.strip():
            raise ValueError(f"{name} does not match its COMMIT")
        if _read(f"{folder}/{name}/{COMMIT}") == commit:  # where the folder is shared after all
            channel.send({"wanted": []})
            channel.send({"kept": name})
            return
        files = json.loads(manifest)["files"]
        if any(os.path.basename(each) != each or each in ("", ".", "..") for each in files):
            raise ValueError(f"{name} names files that are not in it")
        # The name of a writer's temporary folder, so that what is left of one that was killed is removed as such.
        temp = f"{folder}/{temporary_name('tmp', name)}"
        os.makedirs(temp, mode=0o700)
        try:
            channel.send({"wanted": list(files)})
            for each, entry in files.items():
                await _receive(channel, f"{temp}/{each}", entry)
            await in_thread(_commit, temp, f"{folder}/{name}", manifest, commit)
        finally:
            await in_thread(shutil.rmtree, temp, True)
        await in_thread(self._prune, folder)
        channel.send({"kept": name})

    def _prune(self, folder: str) -> None:
        """Keep as many as the job keeps; what other runs have left in the folder is not ours to delete."""
        own = [name for name, _ in sorted(_committed(folder)) if self._is_ours(f"{folder}/{name}")]
        for name in surplus(own, self.task.checkpoint_keep):
            delete(f"{folder}/{name}")

    def _is_ours(self, path: str) -> bool:
        try:
            return bool(json.loads(_read(f"{path}/{MANIFEST}") or "{}").get("run") == self.task.run_id)
        except (ValueError, AttributeError):
            return False


async def _receive(channel: Channel, path: str, entry: dict[str, Any]) -> None:
    """Write the next file of a checkpoint while it is hashed; ValueError where it is another one."""
    left, digest = int(entry["bytes"]), hashlib.sha256()

    def write(data: bytes) -> None:
        digest.update(data)
        file.write(data)

    def end() -> None:
        file.flush()
        os.fsync(file.fileno())

    with open(path, "xb") as file:
        while left:
            data = await _in_time(channel.reader.read(min(PIECE, left)), "nothing came")
            if not data:
                raise OSError("the connection was closed")
            left -= len(data)
            await in_thread(write, data)
        await in_thread(end)
    if digest.hexdigest() != entry["sha256"]:
        raise ValueError(f"{os.path.basename(path)} does not match its sha256")


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
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""
