"""Writes files for the submitting machine: a single file, or the folder of one run of a job array."""

from __future__ import annotations

import contextlib
import os

from orchestrator.node.server.request import Answer, RefusedError, Request, at_user
from orchestrator.protocol.checkpoints.checksum import checksum_of
from orchestrator.protocol.files import PRIVATE, write_json
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import archive_file, node_folder
from orchestrator.protocol.reading import open_own


def write_file(request: Request, payload: bytes) -> Answer:
    """Write a private file completely, or write its next piece.

    sha256: the hash that the complete file must have. sender: a name that distinguishes several senders of the same
    file.
    """
    path, sender, sha256 = at_user(request["path"]), request.get("sender"), request.get("sha256")
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    partial = f"{path}.{sender}.partial" if sender else f"{path}.partial"
    offset = int(request.get("offset", 0))
    flags = os.O_WRONLY
    if not offset:
        flags |= os.O_CREAT | os.O_EXCL
        with contextlib.suppress(FileNotFoundError):  # left by an interrupted write
            os.unlink(partial)
    with open(open_own(partial, flags, PRIVATE), "wb") as file:
        file.seek(offset)
        file.write(payload)
        if request.get("last", True):
            file.flush()
            os.fsync(file.fileno())
    if request.get("last", True):
        if sha256 and checksum_of(partial).hex != sha256:
            os.unlink(partial)
            raise RefusedError(f"{path} was changed on the way: its sha256 is not {sha256}")
        os.replace(partial, path)
    return {"size": offset + len(payload)}, b""


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
