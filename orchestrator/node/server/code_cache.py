"""The code that runs work on, sent once a machine: contents are kept by their sha256, and only new ones travel."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket

from orchestrator.node.server.outputs import baseline, write_baseline
from orchestrator.node.server.request import Answer, RefusedError, Request, at_user
from orchestrator.protocol.files import write_atomic


def missing(request: Request, payload: bytes) -> Answer:
    """Return which of these contents (a JSON list of sha256) are not kept here."""
    folder = _folder(request)
    absent = [each for each in json.loads(payload) if not os.path.exists(f"{folder}/{_safe(each)}")]
    return {}, json.dumps(absent).encode()


def _folder(request: Request) -> str:
    return at_user(f"{request['workdir']}/cache/code")


def _safe(digest: str) -> str:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise RefusedError(f"{digest!r} is not a sha256")
    return digest


def unpack(request: Request, payload: bytes) -> Answer:
    """Keep the contents that were sent, and make the run's own copy of the code from what is kept.

    sizes: of the contents, in the order of their bytes; listing: path -> [kind, sha256], folders first.
    """
    folder, target = _folder(request), at_user(request["code_dir"])
    os.makedirs(folder, mode=0o700, exist_ok=True)
    offset = 0
    for size in request["sizes"]:
        _keep(folder, payload[offset : offset + size])
        offset += size
    if request.get("listing") is None or os.path.isdir(target):
        return {}, b""
    partial = f"{target}.{socket.gethostname()}.{os.getpid()}.tmp"
    os.makedirs(partial, mode=0o700)
    try:
        for path, (kind, content) in request["listing"].items():
            _write_entry(folder, partial, path, kind, content)
        found = baseline(partial)
        os.rename(partial, target)
        write_baseline(target, found)
    except OSError:
        if not os.path.isdir(target):  # where nodes share the folder, the first one's copy is everybody's
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return {}, b""


def _keep(folder: str, content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    write_atomic(f"{folder}/{digest}", content, durable=False)


def _write_entry(folder: str, target: str, path: str, kind: str, content: str) -> None:
    """Write one entry; a link (kind l) has its target as content, the others a sha256."""
    if os.path.isabs(path) or ".." in path.split("/"):
        raise RefusedError(f"{path!r} leads out of the code folder")
    place = f"{target}/{path}"
    if kind == "d":
        os.makedirs(place, exist_ok=True)
    elif kind == "l":
        os.symlink(content, place)
    else:
        kept = f"{folder}/{_safe(content)}"
        shutil.copyfile(kept, place)
        os.utime(kept)  # so that what is in use is not removed as old
        if kind == "x":
            os.chmod(place, 0o700)  # as it was where it came from
