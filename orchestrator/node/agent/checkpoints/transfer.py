"""Checkpoints of other formats between the agents of a run: sent with the hash of every file, put in place when whole.

Node 0 hands the newest to node 1 while the run goes on, so that another machine has it, and before an attempt to each
node that lacks what the attempt goes on from.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from orchestrator.node.agent import neighbour
from orchestrator.node.agent.channel import Channel, ChannelError, Message
from orchestrator.node.agent.checkpoints.saved import place_of
from orchestrator.node.agent.tls import Tls
from orchestrator.node.system.threads import in_thread
from orchestrator.protocol.checkpoints.checksum import Checksum, NotInstalledError, checksum_of, hasher
from orchestrator.protocol.checkpoints.search import Saved, files_of
from orchestrator.protocol.files import sync_folder, write_json
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import GIVEN, node_folder
from orchestrator.protocol.outputs import CHECKPOINTS
from orchestrator.protocol.reading import MOST_RECORD, opened, read_json
from orchestrator.protocol.task import NodeTask

STALLED_SECONDS = 120.0  # that a transfer may stand still, also while the other side writes to a slow disk
HASHED_A_SECOND = 20 << 20  # bytes, at least: the other side may hash what it has
PIECE = 1 << 20
MOST_LISTED = 64 << 20  # bytes of the list of files
REQUEST = "keep_saved"
REFUSED = (OSError, ValueError, KeyError, TypeError, ChannelError, NotInstalledError, asyncio.IncompleteReadError)
"""What taking a checkpoint in may fail by; the sender is told."""

T = TypeVar("T")
Address = tuple[int, tuple[str, ...], int]  # a node, and the addresses and the port of its neighbour server


async def in_time(step: Awaitable[T], what: str) -> T:
    """Return what a step of a transfer returns; ChannelError where it makes none for too long."""
    try:
        return await asyncio.wait_for(step, STALLED_SECONDS)
    except asyncio.TimeoutError as error:
        raise ChannelError(f"{what} for {STALLED_SECONDS:g} s") from error


async def send_file(channel: Channel, path: str, size: int) -> int:
    """Send so many bytes of a file; return how many it had."""
    sent = 0
    with opened(path) as file:
        while data := await in_thread(file.read, min(PIECE, size - sent)):
            channel.writer.write(data)
            await in_time(channel.writer.drain(), "nothing was taken")
            sent += len(data)
    return sent


async def receive_file(channel: Channel, path: str, entry: dict[str, Any]) -> None:
    """Write the next file of a checkpoint while it is hashed; ValueError where it is another one, NotInstalledError."""
    checksum = Checksum.of(entry)
    left, digest = int(entry["bytes"]), hasher(checksum.algorithm)

    def write(data: bytes) -> None:
        digest.update(data)
        file.write(data)

    def end() -> None:
        file.flush()
        os.fsync(file.fileno())

    with open(path, "xb") as file:
        while left:
            data = await in_time(channel.reader.read(min(PIECE, left)), "nothing came")
            if not data:
                raise OSError("the connection was closed")
            left -= len(data)
            await in_thread(write, data)
        await in_thread(end)
    if digest.hexdigest() != checksum.hex:
        raise ValueError(f"{os.path.basename(path)} does not match its checksum")


async def answer_of(channel: Channel, node: int, seconds: float = STALLED_SECONDS) -> Message:
    """Return the next word of the node that takes a checkpoint; ChannelError where there is something in its way."""
    answer = await channel.answer(seconds)
    if answer.get("problem"):
        raise ChannelError(f"node {node}: {answer['problem']}")
    return answer


# -- the side that has it


@dataclass(frozen=True)
class Manifest:
    """A checkpoint as it is sent: its name, where it lies, and of each file size and hash."""

    name: str
    saved: Saved
    files: dict[str, dict[str, Any]]


def manifest_of(name: str, saved: Saved) -> Manifest:
    """Return a checkpoint with the hashes of its files; OSError where one can't be read."""
    above = os.path.dirname(saved.path)
    files = {
        path: {"bytes": size, "sha256": checksum_of(f"{above}/{path}").hex} for path, size in files_of(saved).items()
    }
    return Manifest(name, saved, files)


async def send(
    tls: Tls, to: Address, manifest: Manifest, *, replaces: bool = False, keeps: Sequence[str] | None = None
) -> None:
    """Have a node put a checkpoint where its own ranks would look for it; ChannelError, OSError or ValueError.

    replaces: also in the place of what its own ranks have written, of which none runs; keeps: which of those that it
    was sent before stay.
    """
    node, addrs, port = to
    listing = json.dumps(manifest.files).encode()
    asked = {"do": REQUEST, "checkpoint": manifest.name, "listing": len(listing), "replaces": replaces, "keeps": keeps}
    channel = await neighbour.request(tls, addrs, port, node, asked)
    try:
        channel.writer.write(listing)
        await in_time(channel.writer.drain(), "nothing was taken")
        patience = STALLED_SECONDS + sum(entry["bytes"] for entry in manifest.files.values()) / HASHED_A_SECOND
        for path in (await answer_of(channel, node, patience))["wanted"]:
            size = manifest.files[path]["bytes"]
            sent = await send_file(channel, f"{os.path.dirname(manifest.saved.path)}/{path}", size)
            if sent != size:  # the node would wait for the rest for ever
                raise ValueError(f"{path} has {sent} bytes, and had {size}")
        await answer_of(channel, node)
    finally:
        await channel.close()


# -- the side that lacks it


class SavedReceiver:
    """A node's side: takes what it is handed, one after the other."""

    def __init__(self, task: NodeTask) -> None:
        self.task = task
        self.own = f"{node_folder(task.run_dir, task.node_rank)}/receiving"
        shutil.rmtree(self.own, ignore_errors=True)  # of an agent that was killed
        self.record = f"{task.run_dir}/received.json"
        self.received = _names_in(self.record)  # by other starts too
        self.lock = asyncio.Lock()

    async def take(self, request: Message, channel: Channel) -> None:
        """Take one checkpoint in; the sender is told what is in the way."""
        try:
            async with self.lock:
                await self._keep(request, channel)
        except REFUSED as error:
            channel.send({"problem": str(error) or type(error).__name__})
        with contextlib.suppress(OSError):
            await channel.writer.drain()

    async def _keep(self, request: Message, channel: Channel) -> None:
        name, size = str(request["checkpoint"]), int(request["listing"])
        if not 0 <= size <= MOST_LISTED:
            raise ValueError(f"its list of files would have {size} bytes")
        listing = await in_time(channel.reader.readexactly(size), "nothing came")
        place, files = place_of(self.task, name), _checked(parse_json(listing), os.path.basename(name))
        # While ranks run, what was not received may be theirs, and they may be writing it.
        is_theirs = os.path.lexists(place) and name not in self.received and not request["replaces"]
        if is_theirs or await in_thread(_has_all, os.path.dirname(place), files):
            channel.send({"wanted": []})
            channel.send({"kept": name})
            return
        # Beside the run's other folders, for what is in those comes home as outputs.
        is_apart = name.startswith(f"{CHECKPOINTS}/")
        temp = f"{os.path.dirname(place)}/.{os.path.basename(place)}.receiving" if is_apart else self.own
        await in_thread(shutil.rmtree, temp, True)
        os.makedirs(temp, mode=0o700)
        try:
            channel.send({"wanted": list(files)})
            for path, entry in files.items():
                os.makedirs(os.path.dirname(f"{temp}/{path}"), mode=0o700, exist_ok=True)
                await receive_file(channel, f"{temp}/{path}", entry)
            await in_thread(_put_in_place, temp, place)
        finally:
            await in_thread(shutil.rmtree, temp, True)
        own = {each for each in self.received if not each.startswith(f"{GIVEN}/")}
        gone = own - {name, *request["keeps"]} if request.get("keeps") is not None else set()
        for each in gone:
            await in_thread(_delete, place_of(self.task, each))
        self.received = (self.received - gone) | {name}
        await in_thread(write_json, self.record, sorted(self.received))
        channel.send({"kept": name})


def _checked(files: Any, name: str) -> dict[str, dict[str, Any]]:
    """Return a checkpoint's files; ValueError where one would lie elsewhere than in it, or beside it as `latest`."""
    for path in files:
        parts = path.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in parts) or not (parts[0] == name or path == "latest"):
            raise ValueError(f"{name} names files that are not in it")
    return dict(files)


def _names_in(record: str) -> set[str]:
    try:
        return {str(name) for name in read_json(record, MOST_RECORD)}
    except (OSError, ValueError, TypeError):
        return set()


def _has_all(folder: str, files: Mapping[str, Mapping[str, Any]]) -> bool:
    """Are these very files in the folder?"""
    try:
        return all(
            os.path.getsize(f"{folder}/{path}") == entry["bytes"] and Checksum.of(entry).is_of(f"{folder}/{path}")
            for path, entry in files.items()
        )
    except OSError:
        return False


def _delete(path: str) -> None:
    """Delete a checkpoint; what its own node has deleted before is no problem."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _put_in_place(temp: str, place: str) -> None:
    """Give what was received its name, the checkpoint first: `latest` beside it says that it is whole."""
    folder, first = os.path.split(place)
    os.makedirs(folder, exist_ok=True)
    if os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place)
    for name in (first, *(name for name in os.listdir(temp) if name != first)):
        os.replace(f"{temp}/{name}", f"{folder}/{name}")
    sync_folder(folder)
