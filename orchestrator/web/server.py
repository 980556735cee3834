"""The process of the web page's server: its sockets, its end by a signal, and its start in the background."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Final, TextIO

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrator.errors import OrchError, UsageError
from orchestrator.node.system.processes import Process, identify, send_signal, wait_gone
from orchestrator.protocol.files import PRIVATE, locked, locked_if_free
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.reading import open_own, read_part
from orchestrator.transport.local_users import Guard, check_owners_are_told
from orchestrator.views.reader import Note
from orchestrator.web import files
from orchestrator.web.access import Access
from orchestrator.web.app import Page
from orchestrator.web.door import Door, Limits, Visit, through_its_door
from orchestrator.web.files import Server
from orchestrator.web.listening import HOST, Listeners, close, listen, port_of
from orchestrator.web.metrics import Metrics

END_SECONDS: Final = 10.0
MOST_LOG: Final = 1 << 20
METRICS_LIMITS: Final = Limits(connections=32)
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Ports:
    """The sockets at which a server listens, the file for the token of /metrics, and whether any user may connect."""

    page: Listeners
    metrics: Listeners = ()
    token_file: Path | None = None
    any_user: bool = False

    def close(self) -> None:
        """Close the sockets."""
        close((*self.page, *self.metrics))


def listen_all(port: int, metrics_port: int = 0, *, token_file: Path | None = None, any_user: bool = False) -> Ports:
    """Open the ports of a server, and return them. If `metrics_port` is 0, there is no port for metrics.

    Raises UsageError if a port is taken. Also raises UsageError if the kernel can't report a connection's user, unless
    `any_user` is set.
    """
    if not any_user:
        check_owners_are_told("orch ui --any-user")
    page = listen(port)
    try:
        metrics = listen(metrics_port, "give another one: --metrics-port N") if metrics_port else ()
    except UsageError:
        close(page)
        raise
    return Ports(page, metrics, token_file, any_user)


def serve(
    root: Path, note: Note, say: Callable[[str], None], ports: Ports, on_ready: Callable[[Server, Access], None]
) -> None:
    """Serve the page until a signal ends the process. Raises UsageError if another process serves the page.

    `say` receives one line for each user whose connections are refused.
    """
    with ExitStack() as held:
        server, access = _taken(root, ports, held)
        try:
            token = held.enter_context(files.metrics_token(root, ports.token_file)) if ports.metrics else ""
            page = Page(root, note, access)
            doors = [Door(page.app(), ports.page, Guard(say, any_user=ports.any_user))]
            if ports.metrics:
                doors.append(_metrics_door(page, token, ports.metrics, say))
            asyncio.run(_serve(page, doors, lambda: on_ready(server, access)))
        finally:
            files.forget(root)


def _metrics_door(page: Page, token: str, listeners: Listeners, say: Callable[[str], None]) -> Door:
    guard = Guard(say, any_user=True)
    app = Metrics(token, page.reader, lambda owner: guard.name(owner, "/metrics was asked for without its token by"))
    return Door(app, listeners, guard, METRICS_LIMITS)


def _taken(root: Path, ports: Ports, held: ExitStack) -> tuple[Server, Access]:
    """Record this process as the server of the state folder, until `held` is closed. Raises UsageError if another
    process is the server.

    If two processes start at once, the second waits until the record of the first is complete.
    """
    folder = files.folder_of(root)
    with files.writing(folder), locked(folder / "start.lock"):
        if not held.enter_context(locked_if_free(folder / "server.lock")):
            raise UsageError("another process serves the page already", "open it: orch ui; end it: orch ui --stop")
        access = Access()
        own = identify(os.getpid())
        server = Server(
            pid=os.getpid(),
            started=own.started if own is not None else 0,
            host=os.uname().nodename,
            port=port_of(ports.page),
            name=access.host_name,
            metrics_port=port_of(ports.metrics) if ports.metrics else 0,
            token_file=None if ports.token_file is None else str(ports.token_file),
            any_user=ports.any_user,
            key=access.key,
        )
        files.keep(root, server)
        return server, access


async def _serve(page: Page, doors: list[Door], on_ready: Callable[[], None]) -> None:
    config = uvicorn.Config(
        through_its_door, http="h11", log_config=None, access_log=False, server_header=False, lifespan="off",
        proxy_headers=False, ws="none", timeout_graceful_shutdown=2, h11_max_incomplete_event_size=64 << 10,
    )  # fmt: skip
    config.load()
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # clients could cause endless warnings
    server = _Server(config)

    def speaker(visit: Visit) -> asyncio.Protocol:
        return H11Protocol(config=config, server_state=server.server_state, app_state={"visit": visit})

    def end() -> None:
        accepting.cancel()
        page.watcher.close()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    accepting = asyncio.gather(*(door.serve(speaker) for door in doors))
    # if the doors fail, the server must end, because it accepts no connections any more
    accepting.add_done_callback(lambda _: end())
    for number in _ENDING:
        loop.add_signal_handler(number, end)
    on_ready()
    await server.serve(sockets=[])
    with contextlib.suppress(asyncio.CancelledError):
        await accepting


class _Server(uvicorn.Server):
    """A uvicorn server without uvicorn's signal handlers, because they ignore SIGHUP and raise each signal again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True)
class Detached:
    """The message that the background process receives on stdin: the state folder, and `Ports` as JSON types."""

    root: str
    page: list[int]
    metrics: list[int]
    token_file: str | None
    any_user: bool

    @staticmethod
    def of(root: Path, ports: Ports) -> Detached:
        """Return the message for these ports. It has the file descriptors of their sockets, which the process
        inherits.
        """
        page, metrics = ([each.fileno() for each in sockets] for sockets in (ports.page, ports.metrics))
        token_file = None if ports.token_file is None else str(ports.token_file)
        return Detached(str(root), page, metrics, token_file, ports.any_user)

    def ports(self) -> Ports:
        """Return the ports in the message, whose sockets this process has inherited."""
        page, metrics = (tuple(socket.socket(fileno=each) for each in numbers) for numbers in (self.page, self.metrics))
        return Ports(page, metrics, Path(self.token_file) if self.token_file else None, self.any_user)


def serve_detached(root: Path, ports: Ports, program: str) -> Server:
    """Start a `program` (a module) that serves the page and outlives the terminal. Raises OrchError if it does not
    start.

    If another process has become the server first, return that server.
    """
    log_path = files.folder_of(root) / "server.log"
    told = Detached.of(root, ports)
    with _log(log_path) as log:
        begun = log.tell()
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, pass_fds=[*told.page, *told.metrics], cwd="/",
            start_new_session=True,
        )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin as stdin, child.stdout as stdout:
        stdin.write(json.dumps(asdict(told)).encode())
        stdin.close()
        stdout.readline()  # returns when the child has written "ready" or has ended
    child.returncode = 0  # prevents a warning of subprocess, because this process does not wait for the child
    found = files.server_of(root)  # the child's record, or the record of a server that was faster
    if found is None:
        said = read_part(log_path, begun, 2000).decode(errors="replace").strip()
        raise OrchError(f"the page's server has not started: {said or 'it gave no reason'}", f"see {log_path}")
    return found[0]


def _log(path: Path) -> BinaryIO:
    """Open the log to which all servers append. If the log is too large, empty it first."""
    with files.writing(path.parent):
        descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE)
        bound_log(descriptor)
        return open(descriptor, "ab")


def bound_log(descriptor: int) -> None:
    """Empty the servers' log if it is too large."""
    if os.fstat(descriptor).st_size > MOST_LOG:
        os.ftruncate(descriptor, 0)


class BoundedLog(logging.StreamHandler[TextIO]):
    """Writes log messages of libraries to the servers' log, which is the standard error of the background process."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one log message."""
        bound_log(self.stream.fileno())
        super().emit(record)


def new_code(server: Server) -> str:
    """Request a code from a server. The code opens one session. Raises OrchError if the server does not answer."""
    connection = http.client.HTTPConnection(HOST, server.port, timeout=END_SECONDS)
    try:
        headers = {"host": f"{server.name}:{server.port}", "authorization": f"Bearer {server.key}"}
        connection.request("POST", "/codes", headers=headers)
        answer = connection.getresponse()
        return str(parse_json(answer.read())["code"])
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        said = f"the page's server (pid {server.pid}, port {server.port}) does not answer: {error}"
        raise OrchError(said, "end the server: orch ui --stop") from error
    finally:
        connection.close()


def stop(process: Process) -> None:
    """Stop a server. Raises OrchError if it does not stop."""
    send_signal(process, signal.SIGTERM)
    if wait_gone([process], END_SECONDS):
        raise OrchError(
            f"the page's server (pid {process.pid}) did not end within {END_SECONDS:.0f} s",
            "end the process: kill -9 PID",
        )
