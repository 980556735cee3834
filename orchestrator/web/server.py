"""The page's server as a process: its socket, its end by a signal, and the background process of --detach."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final

import uvicorn

from orchestrator.errors import OrchError, UsageError
from orchestrator.node.system.processes import Process, identify, send_signal, wait_gone
from orchestrator.protocol.files import PRIVATE, locked, locked_if_free, open_own
from orchestrator.protocol.json_text import parse_json
from orchestrator.views.reader import Note
from orchestrator.web import files
from orchestrator.web.access import Access
from orchestrator.web.app import Page
from orchestrator.web.files import Server

HOST: Final = "127.0.0.1"
END_SECONDS: Final = 10.0
MOST_LOG: Final = 1 << 20
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def bind(port: int) -> socket.socket:
    """Return a socket that listens at 127.0.0.1; port 0 is any free one. UsageError where the port is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise UsageError(
            f"port {port} of {HOST}: {error.strerror}", "leave --port out, and a free one is taken"
        ) from error
    listener.listen(128)
    return listener


def serve(root: Path, note: Note, listener: socket.socket, on_ready: Callable[[Server, Access], None]) -> None:
    """Serve the page until the process is asked to end; UsageError where another process serves it."""
    with ExitStack() as held:
        server, access = _taken(root, listener, held)
        try:
            asyncio.run(_serve(Page(root, note, access), listener, lambda: on_ready(server, access)))
        finally:
            files.forget(root)


def _taken(root: Path, listener: socket.socket, held: ExitStack) -> tuple[Server, Access]:
    """Become the server of the state folder, for as long as what is `held` is; UsageError where another one is.

    Of two that start at once the second waits here until the first one's record can be read.
    """
    folder = files.folder_of(root)
    with files.writing(folder), locked(folder / "start.lock"):
        if not held.enter_context(locked_if_free(folder / "server.lock")):
            raise UsageError("another process serves the page already", "open it: orch ui; end it: orch ui --stop")
        access = Access(files.metrics_token(root))
        own = identify(os.getpid())
        server = Server(
            os.getpid(),
            own.started if own is not None else 0,
            os.uname().nodename,
            listener.getsockname()[1],
            access.key,
        )
        files.keep(root, server)
        return server, access


async def _serve(page: Page, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    config = uvicorn.Config(
        page.app(), log_config=None, access_log=False, server_header=False, lifespan="off", proxy_headers=False,
        ws="none", timeout_graceful_shutdown=2, h11_max_incomplete_event_size=64 << 10,
    )  # fmt: skip
    server = _Server(config)

    def end() -> None:
        page.watcher.close()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in _ENDING:
        loop.add_signal_handler(number, end)
    on_ready()
    await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """Leaves the signals to whoever starts it: uvicorn's handlers know nothing of SIGHUP, and raise them again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True)
class Detached:
    """What the background process is told, over its stdin."""

    root: str
    fd: int


def serve_detached(root: Path, listener: socket.socket, program: str) -> Server:
    """Serve the page by a `program` (a module) that outlives the terminal; OrchError where it does not start.

    Where another process was faster, the page is that one's.
    """
    log_path = files.folder_of(root) / "server.log"
    with _log(log_path) as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, pass_fds=(listener.fileno(),), cwd="/",
            start_new_session=True,
        )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin as stdin, child.stdout as stdout:
        stdin.write(json.dumps(asdict(Detached(str(root), listener.fileno()))).encode())
        stdin.close()
        stdout.readline()  # "ready", or its end
    child.returncode = 0  # nobody waits for it here
    found = files.server_of(root)  # its own, or the one for which it has made way
    if found is None:
        raise OrchError("the page's server has not started", f"see {log_path}")
    return found[0]


def _log(path: Path) -> BinaryIO:
    """Open the servers' log, to which each appends; one that has grown large begins anew."""
    with files.writing(path.parent):
        descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
        if os.fstat(descriptor).st_size > MOST_LOG:
            os.ftruncate(descriptor, 0)
        return open(descriptor, "wb")


def new_code(server: Server) -> str:
    """Ask a server for a code that opens one session; OrchError where it does not answer."""
    connection = http.client.HTTPConnection(HOST, server.port, timeout=END_SECONDS)
    try:
        connection.request("POST", "/codes", headers={"authorization": f"Bearer {server.key}"})
        answer = connection.getresponse()
        return str(parse_json(answer.read())["code"])
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        said = f"the page's server (pid {server.pid}, port {server.port}) does not answer: {error}"
        raise OrchError(said, "end it: orch ui --stop") from error
    finally:
        connection.close()


def stop(process: Process) -> None:
    """End a server; OrchError where it stays."""
    send_signal(process, signal.SIGTERM)
    if wait_gone([process], END_SECONDS):
        raise OrchError(
            f"the page's server (pid {process.pid}) did not end within {END_SECONDS:.0f} s", "end it by kill -9"
        )
