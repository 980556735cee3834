"""A rank that waits for a debugger on this machine, and the port by which that comes: for its user alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import UsageError
from orchestrator.node.debug.streams import DATA, HEAD, OPEN, Streams
from orchestrator.transport.forwarding import Forwarding, listen_here
from tests.dap import Client
from tests.patience import PATIENCE
from tests.seccomp import refuse_netlink
from tests.terminal import terminal

from .conftest import Orch

PROGRAM = """import time
def turn(number):
    return number + 1
number = 0
while number < 100000:
    number = turn(number)
    time.sleep(0.01)
"""


def test_a_debugger_goes_and_another_comes_and_ctrl_c_ends_the_run(orch: Orch, project: Callable[..., Path]) -> None:
    folder = project(turn_py=PROGRAM, turn_json=json.dumps({"script": "turn.py", "launcher": "exec"}))
    source = str(folder / "turn.py")
    argv = orch.argv("debug", str(folder / "turn.json"), "-p", "local", "--nproc-per-node", "1", "--rank", "0")
    with terminal(argv, orch.environment()) as screen:
        screen.until("justMyCode")
        run = orch.run()
        found = json.loads((run.path / "launch.json").read_text())["configurations"][0]
        for _ in range(2):
            with Client(found["connect"]["host"], found["connect"]["port"]) as client:
                client.attach(found, {source: [3]})
                frame = client.stopped()[0]
                assert (frame["name"], frame["source"]["path"]) == ("turn", source)
                client.request("disconnect", terminateDebuggee=False)
        screen.type("\x03")
        assert screen.code() == 130
    assert orch("status", run.run_id, "--json").json["state"] == "cancelled"
    assert "Traceback" not in screen.text, screen.text


@pytest.mark.parametrize(
    ("job", "options", "said"),
    [
        ({"script": "turn.py", "launcher": "torchrun"}, (), "torchrun starts the ranks itself"),
        ({"command": ["sh", "-c", "python turn.py"]}, (), "the job runs the command sh"),
        ({"script": "turn.py"}, ("--rank", "7"), "the run has no rank 7"),
    ],
)
def test_what_can_not_be_debugged_is_not_started(
    orch: Orch, project: Callable[..., Path], job: dict[str, object], options: tuple[str, ...], said: str
) -> None:
    folder = project(turn_py=PROGRAM, turn_json=json.dumps(job))
    done = orch("debug", str(folder / "turn.json"), "-p", "local", "--nproc-per-node", "1", "--rank", "0", *options)
    assert (done.code, said in done.err) == (2, True), done.err
    assert not list((orch.home / "runs").glob("*"))


def test_where_the_kernel_does_not_say_whose_a_connection_is_all_users_have_to_be_trusted(
    orch: Orch, project: Callable[..., Path]
) -> None:
    folder = project(turn_py=PROGRAM, turn_json=json.dumps({"script": "turn.py", "launcher": "exec"}))
    done = subprocess.run(
        orch.argv("debug", str(folder / "turn.json"), "-p", "local", "--nproc-per-node", "1", "--rank", "0"),
        capture_output=True, text=True, timeout=PATIENCE, check=False, env=orch.environment(), cwd=orch.cwd,
        preexec_fn=refuse_netlink,
    )  # fmt: skip
    assert done.returncode == 2
    assert "does not report which user" in done.stderr
    assert "--allow-local-users" in done.stderr
    assert not list((orch.home / "runs").glob("*"))


# -- the streams

ECHO = """
import asyncio, sys
from orchestrator.node.debug.relay import _pipes
from orchestrator.node.debug.streams import Streams
async def main():
    reader, writer = await _pipes(0, 1)
    writer.write(f"banner\\n{sys.argv[1]} {{}}\\n".encode())
    await Streams(reader, writer, lambda: asyncio.open_connection("127.0.0.1", int(sys.argv[2]))).serve()
asyncio.run(main())
"""


def carrying(port: int, said: list[str], any_user: bool = False) -> Forwarding:
    """A forwarding to a port of this machine through the streams of another process."""
    return Forwarding(
        lambda boundary: [sys.executable, "-c", ECHO, boundary, str(port)],
        said.append,
        listen_here(),
        any_user=any_user,
    )


def test_a_stream_that_nobody_reads_holds_up_no_other() -> None:
    def flood() -> None:
        for _ in range(2):
            came, _ = server.accept()
            threading.Thread(target=lambda came=came: (came.sendall(bytes(8 << 20)), came.close())).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=flood, daemon=True).start()
        with carrying(server.getsockname()[1], []) as way:
            idle = socket.create_connection(("127.0.0.1", way.port))
            busy = socket.create_connection(("127.0.0.1", way.port), timeout=PATIENCE)
            for connection in (busy, idle):
                count = 0
                while data := connection.recv(1 << 16):
                    count += len(data)
                assert count == 8 << 20
                connection.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
@pytest.mark.parametrize("any_user", [False, True])
def test_another_user_comes_in_only_where_all_may(any_user: bool) -> None:
    said: list[str] = []
    knock = "import socket, sys; print(socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(9))"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            came, _ = server.accept()
            came.sendall(b"hello")
            came.close()

        if any_user:
            threading.Thread(target=greet, daemon=True).start()
        with carrying(server.getsockname()[1], said, any_user) as way:
            done = subprocess.run(
                ["/usr/bin/python3", "-c", knock, str(way.port)],
                user=65534, capture_output=True, text=True, timeout=PATIENCE, check=False,
            )  # fmt: skip
    assert ("hello" in done.stdout) == any_user
    assert said == ([] if any_user else ["refused a connection of user nobody (uid 65534)"])


@pytest.mark.parametrize(
    "sent",
    [
        HEAD.pack(9, 1, 0),
        HEAD.pack(OPEN, 1, 0),
        HEAD.pack(DATA, 1, 1 << 30),
        (HEAD.pack(DATA, 1, 1 << 15) + bytes(1 << 15)) * 64,  # more than the window, and than this end's buffers
    ],
    ids=["kind", "open", "size", "window"],
)
def test_whoever_does_not_keep_to_the_protocol_is_left(sent: bytes) -> None:
    async def one() -> None:
        ours, theirs = socket.socketpair()
        here, unread = socket.socketpair()
        with theirs, unread:
            streams = Streams(*await asyncio.open_connection(sock=ours))
            carried = asyncio.ensure_future(streams.carry(*await asyncio.open_connection(sock=here)))
            writing = threading.Thread(target=_send, args=(theirs, sent))
            writing.start()
            with pytest.raises(ValueError, match="the other end of the connection"):
                await streams.serve()
            await carried
            writing.join()

    asyncio.run(one())


def _send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the other end takes no more of it
        connection.sendall(data)


def test_a_way_that_breaks_is_made_anew_and_one_that_can_not_be_is_told() -> None:
    said: list[str] = []
    starts: list[str] = []

    def command(boundary: str) -> list[str]:
        starts.append(boundary)
        return [sys.executable, "-c", ECHO, boundary, str(server.getsockname()[1])] if len(starts) < 3 else ["false"]

    with socket.create_server(("127.0.0.1", 0)) as server, Forwarding(command, said.append, listen_here()) as way:
        for _ in range(2):
            way.reach()
            assert way.way is not None
            with socket.create_connection(("127.0.0.1", way.port)) as connection:
                came, _ = server.accept()
                os.kill(way.way.process.pid, signal.SIGKILL)
                assert connection.recv(1) == b""
                came.close()
        with socket.create_connection(("127.0.0.1", way.port)) as connection:
            assert connection.recv(1) == b""
    assert len(starts) == 3
    assert said == ["the node can't be reached: the connection was closed"]


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(UsageError, match="can't be used"):
        listen_here(server.getsockname()[1])
