"""Provides a job's input data on a node. An input is identified by its sha256. It is fetched once per node, and all
agents of the node share it.
"""

from __future__ import annotations

import contextlib
import os
from typing import IO

from orchestrator.node.system.hashing import digest_of
from orchestrator.protocol.files import locked
from orchestrator.protocol.reading import open_own, opened
from orchestrator.protocol.task import Input

_verified: set[str] = set()  # paths that this process has verified, so that it need not read a large file again


class InputError(Exception):
    """An input can't be provided. The message names the input, its source and the reason."""


def place(item: Input, folder: str) -> str:
    """Return the path of a verified input on this node. If the input's file is missing or damaged, fetch the input.

    A lock makes other agents of the node wait while one agent fetches. Raises InputError if the input can't be
    provided.
    """
    path = os.path.join(folder, item.sha256)
    try:
        os.makedirs(folder, exist_ok=True)
        if not _is_whole(path, item.sha256):
            with locked(f"{path}.lock"):
                if not _is_whole(path, item.sha256):
                    _fetch(item, path)
    except OSError as error:
        raise InputError(f"input {item.name} can't be stored in {folder}: {error}") from error
    _verified.add(path)
    return path


def _is_whole(path: str, sha256: str) -> bool:
    """Return whether the file exists and has this sha256."""
    if path in _verified:
        return os.path.exists(path)
    try:
        with opened(path) as file:
            return digest_of(file) == sha256
    except OSError:
        return False


def _fetch(item: Input, path: str) -> None:
    from http.client import HTTPException

    partial = f"{path}.partial"
    try:
        _unlink(partial)  # left by a process that was killed
        new = open_own(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(new, "wb") as target, _open(item.source) as source:
            digest = digest_of(source, target)
            target.flush()
            os.fsync(target.fileno())
    except (OSError, HTTPException, ValueError) as error:  # ValueError: the URL is not valid
        _unlink(partial)
        raise InputError(f"input {item.name} can't be fetched from {item.source}: {error}") from error
    if digest != item.sha256:
        _unlink(partial)
        raise InputError(
            f"input {item.name} from {item.source} has sha256 {digest}, but the job requires {item.sha256}"
        )
    os.replace(partial, path)


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _open(source: str) -> IO[bytes]:
    if source.startswith(("http://", "https://")):
        import urllib.request

        response: IO[bytes] = urllib.request.urlopen(source, timeout=60)  # noqa: S310 (http and https only)
        return response
    return open(source, "rb")
