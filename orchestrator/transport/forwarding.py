"""Forwards the connections to a port of 127.0.0.1 on this machine to a port on a node, through a running command such
as ssh.

Every user of this machine can connect to such a port. So a connection is accepted only if the kernel reports that it
comes from a program of this user.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from orchestrator.errors import BackendError, OrchError, UsageError
from orchestrator.node.debug.streams import Streams
from orchestrator.protocol.json_text import parse_json
from orchestrator.transport.boundary import Boundary
from orchestrator.transport.local_users import Guard, check_owners_are_told

LOOPBACK: Final = "127.0.0.1"
LEAVING_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.2
Command = Callable[[str], Sequence[str]]
"""A function that gets a random text, the boundary, and returns the command to start on this machine. The forwarded
streams begin after the output line that starts with the boundary.
"""


def listen_here(port: int = 0, *, any_user: bool = False) -> socket.socket:
    """Return a socket that listens at a port of 127.0.0.1. Port 0 means any free port.

    Raises UsageError if the port is taken. Also raises UsageError if the kernel does not report the users of
    connections, unless `any_user` is True.
    """
    if not any_user:
        check_owners_are_told("--allow-local-users")
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise UsageError(f"port {port} of {LOOPBACK} can't be used: {error.strerror}", "choose another port") from error


class Forwarding:
    """A forwarded port, which is open within the `with` block. If the path to the node breaks, the next connection
    restores it.

    `say` receives one line for each user who is refused, and the reason if the node is unreachable.
    """

    def __init__(
        self, command: Command, say: Callable[[str], None], listening: socket.socket, *, any_user: bool = False
    ) -> None:
        self.command, self.say, self.socket = command, say, listening
        self.reported = ""  # the error of the last connection, because an error of many connections is reported once
        self.guard = Guard(say, any_user=any_user)
        self.port: int = self.socket.getsockname()[1]
        self.loop = asyncio.new_event_loop()
        self.ending = asyncio.Event()
        self.opening = asyncio.Lock()
        self.way: _Way | None = None
        self.thread = threading.Thread(target=self._run, daemon=True, name="forwarding")

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.ending.set)
        self.thread.join()

    def reach(self, is_over: Callable[[], bool] = lambda: False) -> dict[str, Any] | None:
        """Wait until the command on the node answers, and return the command's report about itself. Return None if
        `is_over` returns True first.

        Raises BackendError if the node is unreachable.
        """
        opened = asyncio.run_coroutine_threadsafe(self._open(), self.loop)
        while not is_over():
            with contextlib.suppress(TimeoutError):
                return opened.result(LOOK_SECONDS).told
        return None

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._take, sock=self.socket)
        await self.ending.wait()
        server.close()
        # Cancelled once and awaited, because the loop's end must not cancel a task again while it ends its command.
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.guard.admits(writer.get_extra_info("socket")):
            writer.transport.abort()
            return
        try:
            way = await self._open()
            self.reported = ""
            await way.streams.carry(reader, writer)
        except OrchError as error:
            writer.transport.abort()
            if self.reported != error.message:
                self.say(error.message)
            self.reported = error.message
        except asyncio.CancelledError:  # the port is closed; Python 3.11 would report a raised exception as an error
            writer.transport.abort()

    async def _open(self) -> _Way:
        async with self.opening:
            if self.way is None or self.way.is_over:
                self.way = None
                self.way = await _Way.open(self.command)
            return self.way


class _Way:
    """A running command that carries the forwarded streams."""

    def __init__(self, process: asyncio.subprocess.Process, streams: Streams, told: dict[str, Any]) -> None:
        self.process, self.streams, self.told = process, streams, told
        self.serving = asyncio.ensure_future(self._serve())

    @property
    def is_over(self) -> bool:
        return self.streams.is_over or self.serving.done()

    @staticmethod
    async def open(command: Command) -> _Way:
        """Start the command. Raises BackendError with the command's error output if no answer comes from the node."""
        boundary = Boundary()
        argv = await asyncio.get_running_loop().run_in_executor(None, command, boundary.text)
        with tempfile.TemporaryFile() as errors:
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
                    start_new_session=True,  # a Ctrl-C at the terminal is for this process
                )  # fmt: skip
            except OSError as error:
                raise BackendError(f"{argv[0]} can't be started: {error.strerror}") from error
            assert process.stdout is not None
            assert process.stdin is not None
            try:
                while (line := boundary.rest_of(await process.stdout.readline())) is None:
                    pass
                if line:
                    return _Way(process, Streams(process.stdout, process.stdin), dict(parse_json(line)))
            except (OSError, ValueError, TypeError, RecursionError):  # the output is not orch's
                pass
            except asyncio.CancelledError:
                await _end(process)
                raise
            await _end(process)
            errors.seek(0)
            said = errors.read(4096).decode("utf-8", "replace").strip()
        raise BackendError(f"the node can't be reached: {said[-300:] or 'the connection was closed'}", transient=True)

    async def _serve(self) -> None:
        try:
            with contextlib.suppress(ValueError):  # the stream is not orch's, so it is closed
                await self.streams.serve()
        finally:
            await _end(self.process)  # this closes the input of the program on the node, which then ends


async def _end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), LEAVING_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
