"""Transfers checkpoints between the agents of a run. Each file is hashed during the transfer, and a checkpoint is moved
to its final folder once all its files are verified.

While the run continues, node 0 sends each checkpoint to node 1, so that a second machine has a copy. Before an attempt
that resumes from a checkpoint, node 0 sends this checkpoint to each node that lacks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, TypeVar

from orchestrator.node.agent import neighbour
from orchestrator.node.agent.channel import Channel, ChannelError, Message
from orchestrator.node.agent.checkpoints.saved import place_of
from orchestrator.node.agent.tls import Tls
from orchestrator.node.system.threads import in_thread
from orchestrator.protocol.arriving import PIECE, Arriving
from orchestrator.protocol.checkpoints import checkpoint_dir
from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT, MANIFEST, step_of
from orchestrator.protocol.checkpoints.checksum import Algorithm, Checksum, NotInstalledError
from orchestrator.protocol.checkpoints.formats import TRACKERS
from orchestrator.protocol.checkpoints.search import Saved, files_of
from orchestrator.protocol.files import put_in_place, write_json
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import GIVEN, node_folder
from orchestrator.protocol.messages import Answer, FilesWanted, Hashed, Keep, Kept
from orchestrator.protocol.metric import kept_by
from orchestrator.protocol.outputs import CHECKPOINTS
from orchestrator.protocol.reading import MOST_RECORD, opened, read_json, read_regular
from orchestrator.protocol.task import NodeTask
from orchestrator.protocol.typed import read, to_json

STALLED_SECONDS = 120.0  # a transfer without progress for this long fails; the other side may be writing to a slow disk
REFUSAL_SECONDS = 10.0  # the sender gets this time to notice that its checkpoint is refused
REFUSED = (
    OSError, ValueError, KeyError, TypeError, ChannelError, NotInstalledError, asyncio.IncompleteReadError,
    checkpoint_dir.BadCheckpointError,
)  # fmt: skip
"""The errors after which a node refuses a checkpoint and reports the reason to the sender."""
FAILURES = (OSError, ValueError, RuntimeError, KeyError, ChannelError, checkpoint_dir.BadCheckpointError)
"""The errors after which a sender gives up. RuntimeError is included, because asyncio raises it if a transport is
closed.
"""

T = TypeVar("T")
Given = TypeVar("Given", bound=Answer)
Address = tuple[int, tuple[str, ...], int]  # a node's number, and the addresses and the port of its neighbour server
Facts = dict[str, Any]  # a file's size as "bytes", and its checksum under the algorithm's name or its "mtime_ns"


async def _in_time(step: Awaitable[T], what: str) -> T:
    """Return the result of a step of a transfer. Raises ChannelError if the step takes too long."""
    try:
        return await asyncio.wait_for(step, STALLED_SECONDS)
    except asyncio.TimeoutError as error:
        raise ChannelError(f"{what} for {STALLED_SECONDS:g} s") from error


# -- the sender


@dataclass(frozen=True)
class Parcel:
    """A checkpoint to be sent: its name, its parent folder, and its files by their paths below that folder."""

    name: str
    above: str
    files: dict[str, Facts]


def parcel_of(name: str, saved: Saved) -> Parcel:
    """Return another framework's checkpoint as a `Parcel`, which can be sent to a node. Its files are hashed while they
    are sent. Raises OSError if a file can't be read.
    """
    above = os.path.dirname(saved.path)
    files = {}
    for path, size in files_of(saved).items():
        files[path] = {"bytes": size, "mtime_ns": os.stat(f"{above}/{path}").st_mtime_ns}
    return Parcel(name, above, files)


def orchs_parcel(path: str) -> Parcel:
    """Return a checkpoint in orch's format as a `Parcel`, which can be sent to a node. The hashes come from the
    checkpoint's manifest, and COMMIT is sent last.

    Raises one of FAILURES if the checkpoint can't be read.
    """
    above, name = os.path.split(path)
    files = {}
    contents = {each: read_regular(f"{path}/{each}", MOST_RECORD, above) for each in (MANIFEST, COMMIT)}
    for each, entry in checkpoint_dir.manifest_of(contents[MANIFEST]).files.items():
        checksum = Checksum.of(entry)
        files[f"{name}/{each}"] = {"bytes": int(entry["bytes"]), str(checksum.algorithm): checksum.hex}
    for each, content in contents.items():
        files[f"{name}/{each}"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return Parcel(f"{CHECKPOINTS}/{name}", above, files)


async def send(
    tls: Tls, to: Address, parcel: Parcel, *, replaces: bool = False, keeps: Sequence[str] | None = None
) -> None:
    """Send a checkpoint to a node, which stores it in the folder that its own ranks read. Raises one of FAILURES if the
    transfer fails.

    replaces: whether the checkpoint may overwrite a checkpoint of the same name that the receiving node's ranks have
    written. This is safe if none of these ranks runs, or if the name contains the step. keeps: the names of the
    checkpoints from earlier transfers that the receiving node must keep; None keeps all.
    """
    node, addrs, port = to
    listing = json.dumps(parcel.files).encode()
    asked = Keep(node, parcel.name, len(listing), replaces, None if keeps is None else tuple(keeps))
    channel = await neighbour.request(tls, addrs, port, asked)
    try:
        channel.writer.write(listing)
        await _in_time(channel.writer.drain(), "nothing was taken")
        wanted = _checked_answer(await channel.answer(STALLED_SECONDS), node, FilesWanted).wanted
        answer = asyncio.ensure_future(channel.receive())  # the receiver may refuse before all files are sent
        try:
            for path in wanted:
                await _send_file(channel, f"{parcel.above}/{path}", parcel.files[path], answer)
            _checked_answer(await _in_time(answer, "no answer"), node, Kept)
        finally:
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # retrieve and ignore this error, because the error of the changed file matters more
    finally:
        await channel.close()


def _checked_answer(answer: Message | None, node: int, cls: type[Given]) -> Given:
    """Return the receiving node's answer. Raises ChannelError if the answer reports a problem, or if the node has
    closed the connection.
    """
    if answer is None:
        raise ChannelError("the connection was closed")
    made = read(cls, answer)
    if made.problem:
        raise ChannelError(f"node {node}: {made.problem}")
    return made


async def _send_file(channel: Channel, path: str, facts: Facts, answer: asyncio.Future[Message | None]) -> None:
    """Send a file, followed by its hash if the receiver does not know the hash. Stop if the receiver answers before the
    whole file was sent.

    Raises ValueError if the file has changed since it was listed, because the receiver waits for exactly the announced
    bytes.
    """
    digest = hashlib.sha256()

    def read() -> bytes:
        data = file.read(PIECE)
        if "mtime_ns" in facts:
            digest.update(data)
        return data

    def check() -> None:
        info = os.fstat(file.fileno())
        if info.st_size != facts["bytes"]:
            raise ValueError(f"{path} has {info.st_size} bytes, and should have {facts['bytes']}")
        if info.st_mtime_ns != facts.get("mtime_ns", info.st_mtime_ns):
            raise ValueError(f"{path} was changed after it was listed")

    with opened(path) as file:
        check()
        while not answer.done() and (data := await in_thread(read)):
            channel.writer.write(data)
            await _in_time(channel.writer.drain(), "nothing was taken")
        check()
    if "mtime_ns" in facts:
        channel.send(to_json(Hashed(digest.hexdigest())))


# -- the receiver


class Receiver:
    """Receives checkpoints that other agents of the run send to this node, one checkpoint at a time."""

    def __init__(self, task: NodeTask) -> None:
        self.task = task
        self.own = f"{node_folder(task.run_dir, task.node_rank)}/receiving"
        shutil.rmtree(self.own, ignore_errors=True)  # left by an agent that was killed
        self.record = f"{task.run_dir}/received.json"
        self.received = _read_record(self.record)  # earlier starts of the run may have received checkpoints
        self.lock = asyncio.Lock()

    async def take(self, request: Keep, channel: Channel) -> None:
        """Receive one checkpoint. If a problem occurs, report it to the sender."""
        try:
            async with self.lock:
                await self._keep(request, channel)
        except REFUSED as error:
            channel.send(to_json(Answer(str(error) or type(error).__name__)))
            await _until_closed(channel)
        with contextlib.suppress(OSError):
            await channel.writer.drain()

    async def _keep(self, request: Keep, channel: Channel) -> None:
        name, listing = request.checkpoint, await _in_time(channel.reader.readexactly(request.listing), "nothing came")
        place, files = place_of(self.task, name), _checked(parse_json(listing), os.path.basename(name))
        above, known = os.path.dirname(place), self.received.get(name)
        # A folder that was not received belongs to this node's ranks, which may still be writing it.
        is_theirs = os.path.lexists(place) and known is None and not request.replaces
        if is_theirs or await in_thread(_has_all, above, files, known or {}):
            channel.send(to_json(FilesWanted()))
            channel.send(to_json(Kept(kept=name)))
            return
        temp = self._temporary(name, place)
        await in_thread(shutil.rmtree, temp, True)
        os.makedirs(temp, mode=0o700)
        try:
            channel.send(to_json(FilesWanted(wanted=tuple(files))))
            for path, facts in files.items():
                os.makedirs(os.path.dirname(f"{temp}/{path}"), mode=0o700, exist_ok=True)
                await _receive_file(channel, f"{temp}/{path}", facts)
            if _is_orchs(name):
                _check_manifest(Path(temp, os.path.basename(name)), files)
            await in_thread(put_in_place, temp, place)
        finally:
            await _to_its_end(shutil.rmtree, temp, True)
        if _is_orchs(name):
            await in_thread(self._prune, above)
        else:
            await in_thread(self._note, name, above, files, request.keeps)
        channel.send(to_json(Kept(kept=name)))

    def _temporary(self, name: str, place: str) -> str:
        """Return a temporary folder for arriving files, on the same disk as their final folder. The temporary folder
        is never copied as an output.
        """
        above, last = os.path.split(place)
        if _is_orchs(name):  # the name is that of an unfinished checkpoint, which is removed if its writer was killed
            return f"{above}/{checkpoint_dir.temporary_name('tmp', last)}"
        return f"{above}/.{last}.receiving" if name.startswith(f"{CHECKPOINTS}/") else self.own

    def _note(self, name: str, above: str, files: Mapping[str, Facts], keeps: Sequence[str] | None) -> None:
        """Record the files of a received checkpoint. Delete checkpoints that were received earlier and that node 0 no
        longer has.
        """
        own = {each for each in self.received if not each.startswith(f"{GIVEN}/")}
        for each in own - {name, *keeps} if keeps is not None else ():
            _delete(place_of(self.task, each))
            del self.received[each]
        self.received[name] = {
            path: [facts["mtime_ns"], os.stat(f"{above}/{path}").st_mtime_ns] for path, facts in files.items()
        }
        write_json(self.record, self.received)

    def _prune(self, folder: str) -> None:
        """Delete old checkpoints in orch's format beyond the number that the job keeps. Checkpoints of other runs are
        kept.
        """
        own = [name for name in checkpoint_dir.committed(folder) if self._is_ours(Path(folder, name))]
        best = checkpoint_dir.best_of(folder, own, kept_by(self.task.checkpoint_best, self.task.checkpoint_better))
        for name in checkpoint_dir.surplus(own, self.task.checkpoint_keep, best):
            checkpoint_dir.delete(f"{folder}/{name}")

    def _is_ours(self, path: Path) -> bool:
        with contextlib.suppress(checkpoint_dir.BadCheckpointError):
            return checkpoint_dir.read_manifest(path)[0].run == self.task.run_id
        return False


async def _receive_file(channel: Channel, path: str, facts: Facts) -> None:
    """Receive the next file, hash its bytes, and write them. Raises ValueError if the hash differs from the
    sender's.
    """
    checksum = None if "mtime_ns" in facts else Checksum.of(facts)
    left = int(facts["bytes"])
    arriving = Arriving(path, "", 0, checksum.algorithm if checksum else Algorithm.SHA256)
    try:
        while left:
            data = await _in_time(channel.reader.read(min(PIECE, left)), "nothing came")
            if not data:
                raise OSError("the connection was closed")
            left -= len(data)
            await _to_its_end(arriving.take, data)
            if arriving.problem is not None:
                raise arriving.problem
        sha256 = checksum.hex if checksum else read(Hashed, await channel.answer(STALLED_SECONDS)).sha256
        if arriving.digest.hexdigest() != sha256:
            raise ValueError(f"{os.path.basename(path)} does not match its checksum")
        await _to_its_end(arriving.finish)
    finally:
        arriving.leave()


async def _to_its_end(work: Callable[..., Any], *args: Any) -> None:
    """Run blocking work in a worker thread. If this task is cancelled, wait until the work has ended, so that the
    caller can remove its files.
    """
    running = asyncio.ensure_future(in_thread(work, *args))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def _until_closed(channel: Channel) -> None:
    """Read and drop the sender's remaining bytes until it closes the connection. If bytes were left unread, TCP could
    lose the last answer to the sender.
    """

    async def drop() -> None:
        while await channel.reader.read(PIECE):
            pass

    with contextlib.suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(drop(), REFUSAL_SECONDS)


def _is_orchs(name: str) -> bool:
    root, _, below = name.partition("/")
    return root == CHECKPOINTS and step_of(below) is not None


def _check_manifest(path: Path, files: Mapping[str, Facts]) -> None:
    """Compare the received, verified files with the checkpoint's manifest. Raises BadCheckpointError or ValueError if
    they differ.
    """
    manifest, _ = checkpoint_dir.read_manifest(path)
    said = {f"{path.name}/{name}": Checksum.of(entry) for name, entry in manifest.files.items()}
    if any(path not in files or Checksum.of(files[path]) != checksum for path, checksum in said.items()):
        raise ValueError(f"the files of {path.name} differ from its manifest")


def _checked(files: Any, name: str) -> dict[str, Facts]:
    """Return the listed files of a checkpoint.

    Raises ValueError if a file is outside the checkpoint's folder. The only exception is a file that is named in
    `TRACKERS`, which may be beside the folder.
    """
    if not isinstance(files, dict) or any(int(facts["bytes"]) < 0 for facts in files.values()):
        raise ValueError(f"the list of files of {name} is damaged")
    for path in files:
        parts = path.split("/")
        is_ours = parts[0] == name or path in TRACKERS
        if not is_ours or any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise ValueError(f"the list of files of {name} names files outside {name}")
    return dict(files)


def _read_record(record: str) -> dict[str, dict[str, list[int]]]:
    """Read the record of received checkpoints: for each file, its modification times on the sender and on this node."""
    try:
        return dict(read_json(record, MOST_RECORD))
    except (OSError, ValueError, TypeError):
        return {}


def _has_all(folder: str, files: Mapping[str, Facts], received: Mapping[str, list[int]]) -> bool:
    """Return whether the folder already has all these files, from a shared disk or from an earlier transfer.

    Files are compared by size and time. For a checkpoint in orch's format, the sender announces no times, so the hash
    of the file COMMIT is compared instead.
    """
    try:
        for path, facts in files.items():
            info = os.stat(f"{folder}/{path}")
            times = [facts.get("mtime_ns"), info.st_mtime_ns]
            is_same = times[0] in (None, times[1]) or times == received.get(path)
            if info.st_size != facts["bytes"] or not is_same:
                return False
            if os.path.basename(path) == COMMIT and not Checksum.of(facts).is_of(f"{folder}/{path}"):
                return False
    except OSError:
        return False
    return True


def _delete(path: str) -> None:
    """Delete a checkpoint, if the ranks of this node have not deleted it already."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
