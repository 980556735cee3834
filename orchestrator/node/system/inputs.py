"""Data that a job needs on the node, found again by its content: fetched once a node, whoever asks first."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import IO

from orchestrator.protocol.files import locked
from orchestrator.protocol.task import Input

CHUNK = 1 << 20


class InputError(Exception):
    """An input can't be had; the message says which, from where and why."""


def place(item: Input, folder: str) -> str:
    """Return the path of the input on this node, fetched and verified if nobody did so before.

    Agents of one node meet at a lock: the first fetches, the others wait for it. InputError when it can't be had.
    """
    path = os.path.join(folder, item.sha256)
    try:
        os.makedirs(folder, exist_ok=True)
        with locked(f"{path}.lock"):
            if not os.path.exists(path):
                _fetch(item, path)
    except OSError as error:
        raise InputError(f"input {item.name} can't be kept in {folder}: {error}") from error
    return path


def _fetch(item: Input, path: str) -> None:
    from http.client import HTTPException  # noqa: PLC0415 (most agents fetch nothing)

    partial = f"{path}.partial"
    try:
        with _open(item.source) as source, open(partial, "wb") as target:
            digest = _copy(source, target)
            target.flush()
            os.fsync(target.fileno())
    except (OSError, HTTPException, ValueError) as error:  # ValueError: a URL that is none
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise InputError(f"input {item.name} can't be fetched from {item.source}: {error}") from error
    if digest != item.sha256:
        os.unlink(partial)
        raise InputError(f"input {item.name} from {item.source} has sha256 {digest}, the job asks for {item.sha256}")
    os.replace(partial, path)


def _open(source: str) -> IO[bytes]:
    if source.startswith(("http://", "https://")):
        import urllib.request  # noqa: PLC0415 (most agents fetch nothing)

        response: IO[bytes] = urllib.request.urlopen(source, timeout=60)  # noqa: S310 (http and https only)
        return response
    return open(source, "rb")


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK):
        digest.update(chunk)
        target.write(chunk)
    return digest.hexdigest()
