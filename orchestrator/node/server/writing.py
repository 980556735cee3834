"""Writes files for the submitting machine: a single file, or the folder of one run of a job array."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.node.server.request import Answer, RefusedError, Request, at_user
from orchestrator.protocol.files import PRIVATE, write_atomic, write_json
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import archive_file, node_folder

if TYPE_CHECKING:  # loads concurrent.futures, for which no submit on this machine must wait
    from orchestrator.protocol.arriving import Arriving


@dataclass
class _Transfer:
    """A file that a sender sends in pieces. Several workers may have its pieces at once, in any order."""

    arriving: Arriving
    lock: threading.Lock = field(default_factory=threading.Lock)
    early: dict[int, bytes] = field(default_factory=dict)  # offset -> a piece whose predecessors have not arrived


_transfers: dict[str, _Transfer] = {}  # by sender


def write_file(request: Request, payload: bytes) -> Answer:
    """Write a private file, whose contents are the payload. Raises RefusedError if the payload does not have the
    request's `sha256`.
    """
    path, sha256 = at_user(request["path"]), request.get("sha256")
    if sha256 and hashlib.sha256(payload).hexdigest() != sha256:
        raise RefusedError(f"{path} was changed on the way: its sha256 is not {sha256}")
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    write_atomic(path, payload, mode=PRIVATE)
    return {}, b""


def begin_file(request: Request, _: bytes) -> Answer:
    """Begin to receive a private file in pieces. Return how many of its bytes an interrupted transfer has left.

    version: identifies the contents. size: the file's size in bytes. sender: a random name for this transfer.
    """
    from orchestrator.protocol.arriving import Arriving

    path, size = at_user(request["path"]), int(request["size"])
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    try:
        arriving = Arriving(path, request["version"], size, is_alone=True)
    except OSError:  # another sender sends the same version, or this file system has no locks
        arriving = Arriving(path, request["sender"], size)
    _transfers[request["sender"]] = _Transfer(arriving)
    return {"size": arriving.size}, b""


def write_piece(request: Request, payload: bytes) -> Answer:
    """Write a piece of a file. The last piece has the `sha256` of the whole file, and is sent after all other pieces
    were answered. If the hash matches, the file gets its final name.
    Otherwise the received bytes are deleted, and the answer says that they were wrong.
    """
    transfer = _transfers[request["sender"]]
    arriving, sha256 = transfer.arriving, request.get("sha256")
    with transfer.lock:
        transfer.early[request["offset"]] = payload
        while arriving.size in transfer.early:
            arriving.take(transfer.early.pop(arriving.size))
        if arriving.problem is None and sha256 is None:
            return {}, b""
        del _transfers[request["sender"]]
        if arriving.problem is None and (transfer.early or arriving.digest.hexdigest() != sha256):
            arriving.drop()
            return {"is_wrong": True}, b""
        arriving.finish()
    return {}, b""


def prepare_array_run(request: Request, payload: bytes) -> Answer:
    """Create the folder of one run of a job array. It gets the tasks of the run's nodes from the payload, and a hard
    link to the request's `archive`.

    folder: the subfolder of the run's folder for the logs of its job. This request may be repeated safely.
    """
    run_dir = at_user(request["run_dir"])
    os.makedirs(f"{run_dir}/{request['folder']}", mode=0o700, exist_ok=True)
    for node, task in enumerate(parse_json(payload)):
        os.makedirs(node_folder(run_dir, node), mode=0o700, exist_ok=True)
        write_json(f"{node_folder(run_dir, node)}/task.json", task, mode=PRIVATE)
    with contextlib.suppress(FileExistsError):
        os.link(at_user(request["archive"]), archive_file(run_dir))
    return {}, b""
