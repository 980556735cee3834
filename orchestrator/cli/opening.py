"""Opens the page of `orch ui`: starts its server and the browser, and describes other ways to open it."""

from __future__ import annotations

import getpass
import os
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import OrchError

if TYPE_CHECKING:
    from orchestrator.web.files import Server

PROGRAM = "orchestrator.cli.ui_process"


def check_packages() -> None:
    """Raise OrchError if the packages of the page are not installed."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise OrchError("orch ui needs Python packages that are not installed", "pip install 'orchrun[ui]'")


def detached_server(root: Path) -> tuple[Server, str]:
    """Return the page's server, and a code with which a browser can open one session. If no server runs, start one in
    the background.
    """
    check_packages()
    from orchestrator.web import files
    from orchestrator.web.server import listen_all, new_code, serve_detached

    found = files.server_of(root)
    if found is not None:
        return found[0], new_code(found[0])
    with closing(listen_all(0)) as ports:
        server = serve_detached(root, ports, PROGRAM)
    return server, new_code(server)


def open_page(root: Path, server: Server, code: str, place: str = "", *, opens: bool = True) -> list[str]:
    """Open the page in a browser if possible, and return lines that tell the user how to open it.

    If stderr is a terminal, the lines have the address with its secret code. Otherwise they name a private file that
    opens the page.
    """
    from orchestrator.web import files

    address = files.address_of(server, code, place)
    path = files.write_opening(root, address)
    is_remote = "SSH_CONNECTION" in os.environ
    said = []
    if is_remote:
        host = os.environ["SSH_CONNECTION"].split()[2:3] or [server.host]
        tunnel = f"{server.port}:127.0.0.1:{server.port} {getpass.getuser()}@{host[0]}"
        said.append(f"on your own machine: ssh -N -o ExitOnForwardFailure=yes -L {tunnel}")
    if sys.stderr.isatty():
        said.append(f"then open there, once: {address}" if is_remote else f"open, once: {address}")
    else:
        said.append(f"open, once: {path}")
    if opens and not is_remote and any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        _start_browser(path)
    return said


def _start_browser(path: Path) -> None:
    """Start the user's browser with a private file that redirects to the page. The page's address is not an argument of
    the browser, because other users can see arguments.
    """
    import subprocess

    devnull = subprocess.DEVNULL
    argv = [sys.executable, "-P", "-m", "webbrowser", path.as_uri()]
    try:
        child = subprocess.Popen(argv, stdin=devnull, stdout=devnull, stderr=devnull, start_new_session=True)
    except OSError as error:
        raise OrchError(f"no browser could be started: {error.strerror}", f"open {path}") from error
    child.returncode = 0  # prevents a warning of subprocess, because this process does not wait for the browser
