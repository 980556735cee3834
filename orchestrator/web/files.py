"""The files of the web page's server in the state folder: its record, its keys, and the file that opens the page.

Only the user can read them (mode 0600). No code or key is ever in an argv, which `ps` shows to all users.
"""

from __future__ import annotations

import contextlib
import errno
import html
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from orchestrator.errors import StoreError
from orchestrator.node.system.private import make_private
from orchestrator.node.system.processes import Process, identify
from orchestrator.protocol.files import PRIVATE
from orchestrator.protocol.reading import open_own
from orchestrator.runs.store import RunDir, check_own, write_durably

RECORD: Final = "server.json"
METRICS_TOKEN: Final = "metrics_token"  # noqa: S105 (a file's name)
OPENING: Final = "open.html"


@dataclass(frozen=True)
class Server:
    """A server that was started: its process, its address, its options, and the key with which a command requests a
    one-time login code.

    `host` is the machine, and `name` is the host name in the page's URL. A `metrics_port` of 0 means that there is no
    port for metrics.
    """

    pid: int
    started: int
    host: str
    port: int
    name: str
    metrics_port: int
    token_file: str | None
    any_user: bool
    key: str


def folder_of(root: Path) -> Path:
    """Return the server's folder. Create it if it is missing. Raises StoreError if other users may write into it."""
    check_own(root)
    folder = root / "ui"
    try:
        make_private(str(folder), exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"{folder} can't be created: {error.strerror}", "set ORCH_HOME to a folder of yours"
        ) from error
    check_own(folder)
    return folder


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise StoreError for each OSError in the block, which writes to the server's folder."""
    try:
        yield
    except OSError as error:
        path = error.filename if isinstance(error.filename, str) else folder
        hint = "make it writable, or set ORCH_HOME to a folder of yours"
        raise StoreError(f"{path} can't be written: {error.strerror}", hint) from error


def keep(root: Path, server: Server) -> None:
    """Record the process that serves the page."""
    RunDir(folder_of(root)).write(RECORD, asdict(server), private=True)


def forget(root: Path) -> None:
    """Remove the record of a server that ends, and the file that opens its page."""
    folder = root / "ui"
    with writing(folder):
        for name in (RECORD, OPENING):
            (folder / name).unlink(missing_ok=True)


def server_of(root: Path) -> tuple[Server, Process] | None:
    """Return the server that runs on this machine; None if there is no server, or if its record is damaged."""
    try:
        server = Server(**(RunDir(root / "ui").read(RECORD) or {}))
        found = identify(server.pid)
    except (StoreError, TypeError):
        return None
    if found is None or (found.started, os.uname().nodename) != (server.started, server.host):
        return None
    return server, found


@contextlib.contextmanager
def metrics_token(root: Path, path: Path | None) -> Iterator[str]:
    """Yield a new token for /metrics, and store the token in a file until the block ends. Raises StoreError if the file
    can't be written.

    A token is valid for one server only, because Prometheus sends it to any process that listens at the port, even if
    the server has ended. A file that the user named keeps its mode, so that the group of Prometheus can read it.
    """
    token = secrets.token_urlsafe()
    target = path or folder_of(root) / METRICS_TOKEN
    if path is None:
        write_durably(target, f"{token}\n".encode(), private=True)
    else:
        _overwrite(target, f"{token}\n")
    try:
        yield token
    finally:
        if path is None:
            target.unlink(missing_ok=True)
        else:
            _overwrite(target, "")


def _overwrite(path: Path, text: str) -> None:
    """Write a file in place, so that it keeps its mode. Raises StoreError for a link or another user's file."""
    try:
        with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, PRIVATE), "w") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EPERM, "it is not a regular file that you own")
            file.truncate()
            file.write(text)
    except OSError as error:
        said = f"the token of /metrics can't be written to {path}: {error.strerror}"
        raise StoreError(said, "name a regular file that you own: --metrics-token FILE") from error


def address_of(server: Server, code: str, place: str = "") -> str:
    """Return a URL that works only once and opens the page at the path `place`, such as `/run/ID`.

    The URL has the code after the #, because browsers do not send that part.
    """
    return f"http://{server.name}:{server.port}/enter#{code}{place}"


def write_opening(root: Path, address: str) -> Path:
    """Write a file that redirects a browser to the page, and return its path."""
    path = folder_of(root) / OPENING
    link = html.escape(address, quote=True)
    text = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}">
<title>orch</title>
<p><a href="{link}">Open the page of orch</a></p>
</html>
"""
    write_durably(path, text.encode(), private=True)
    return path
