"""This machine's caches of code and wheels. Each file is stored under its sha256, so only missing files are sent."""

from __future__ import annotations

import hashlib
import json
import os

from orchestrator.node.server.request import Answer, RefusedError, Request, at_user
from orchestrator.node.server.working_folder import make
from orchestrator.node.system.copying import is_cloned
from orchestrator.node.system.hashing import digest_of
from orchestrator.protocol.files import write_atomic
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.reading import open_own, opened

CACHES = ("code", "wheels")


def missing(request: Request, payload: bytes) -> Answer:
    """Return which of the requested files (a JSON list of sha256) this machine lacks. Mark the other files as just
    used.
    """
    folder = _folder(request)
    absent = [each for each in parse_json(payload) if not _is_whole(folder, _safe(each))]
    return {}, json.dumps(absent).encode()


def _is_whole(folder: str, digest: str) -> bool:
    """Return whether the cache has a file with this hash. A file that was truncated by a crash or changed doesn't
    count.
    """
    try:
        with opened(f"{folder}/{digest}") as file:
            is_whole = digest_of(file) == digest
            if is_whole:
                os.utime(file.fileno())  # so that this file is not removed as old
            return is_whole
    except OSError:
        return False


def _folder(request: Request) -> str:
    name = request.get("cache", "code")
    if name not in CACHES:
        raise RefusedError(f"{name!r} is not the name of a cache")
    return at_user(f"{request['workdir']}/cache/{name}")


def _safe(digest: str) -> str:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise RefusedError(f"{digest!r} is not a sha256")
    return digest


def unpack(request: Request, payload: bytes) -> Answer:
    """Store the sent files in the cache. If the request has a `listing`, also create the run's copy of the code from
    cached files.

    sizes: the sizes of the files in the payload, in order. listing: path -> [kind, sha256], with folders first.
    """
    folder = _folder(request)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    offset = 0
    for size in request["sizes"]:
        content = payload[offset : offset + size]
        # A truncated file is detected by its hash, and is then sent again.
        write_atomic(f"{folder}/{hashlib.sha256(content).hexdigest()}", content, durable=False)
        offset += size
    if request.get("listing") is None:
        return {}, b""

    def fill(partial: str) -> None:
        for path, (kind, content) in request["listing"].items():
            _write_entry(folder, partial, path, kind, content)

    make(at_user(request["code_dir"]), fill)
    return {}, b""


def _write_entry(folder: str, target: str, path: str, kind: str, content: str) -> None:
    """Create one entry of the run's copy of the code. For a link (kind l), `content` is the link's target. For a file,
    it is the file's sha256.
    """
    if os.path.isabs(path) or ".." in path.split("/"):
        raise RefusedError(f"{path!r} leads out of the code folder")
    place = f"{target}/{path}"
    if kind == "d":
        os.makedirs(place, exist_ok=True)
    elif kind == "l":
        os.symlink(content, place)
    else:
        mode = 0o700 if kind == "x" else 0o600  # the same permission to execute as on the submitting machine
        new = open_own(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(new, "wb") as copy, opened(f"{folder}/{_safe(content)}") as kept:
            if digest_of(kept, None if is_cloned(kept, copy) else copy) != content:
                raise RefusedError(f"{folder}/{content} has changed: its contents do not match the sha256 in its name")
