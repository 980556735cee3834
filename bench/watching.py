"""What watching costs: iterations a second of a job while it is watched, and of the same job while nobody looks.

One launch; its turns are watched and unwatched in turn. What watches is stopped (SIGSTOP) while nobody is to look.
Watched by `orch top`, on a terminal that takes all it draws; and by three open pages: the server of `orch ui`, and
three clients that ask it for what the page asks for. A browser draws on the reader's own machine: none is measured.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

from launches import OrchLaunch, ended, workplace
from pairs import Load, Pairs, Target, how_many, print_pairs, say
from taking_turns import environment, turn_of

from orchestrator.node.system.processes import Process, identify, send_signal
from orchestrator.web import files
from orchestrator.web.server import new_code

NPROC, ROUNDS, STEPS, PAGES = 2, 10, 400, 3
ORCH = [sys.executable, "-m", "orchestrator.cli"]
ASKED = {"state": ("",), "beats": ("",), "use": ("/pace",), "metrics": ("",)}


@contextlib.contextmanager
def top(launch: OrchLaunch) -> Iterator[list[Process]]:
    """`orch top RUN` on a terminal of 80x24."""
    leader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {**launch.env, "TERM": "xterm-256color"}
    child = subprocess.Popen(
        [*ORCH, "top", launch.run_id], env=env, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    )
    os.close(terminal)
    is_drawn = threading.Event()

    def drain() -> None:
        shown = b""
        with contextlib.suppress(OSError):  # the terminal's end
            while data := os.read(leader, 1 << 16):
                shown = b"" if is_drawn.is_set() else shown + data
                if b"overview" in shown:
                    is_drawn.set()

    reader = threading.Thread(target=drain)
    reader.start()
    try:
        if not is_drawn.wait(60):
            raise RuntimeError("orch top has drawn nothing")
        yield _identified(child.pid)
    finally:
        child.send_signal(signal.SIGCONT)
        child.terminate()
        child.wait(10)
        reader.join()
        os.close(leader)


@contextlib.contextmanager
def pages(launch: OrchLaunch) -> Iterator[list[Process]]:
    """The page's server, and as many clients as pages, each of which has asked for all that a run's page shows."""
    subprocess.run([*ORCH, "ui", "--detach", "--no-open"], env=launch.env, check=True, capture_output=True)
    found = files.server_of(Path(launch.env["ORCH_HOME"]))
    assert found is not None
    server, process = found
    opened = [threading.Event() for _ in range(PAGES)]
    clients: list[threading.Thread] = []
    try:
        for event in opened:  # one by one: a new code takes the place of one that was not used yet
            read = (server.port, _session(server), launch.run_id, event.set)
            clients.append(threading.Thread(target=_read, args=read))
            clients[-1].start()
        if not all(event.wait(60) for event in opened):
            raise RuntimeError("a page was never drawn")
        yield [process]
    finally:
        send_signal(process, signal.SIGCONT)
        subprocess.run([*ORCH, "ui", "--stop"], env=launch.env, check=True, capture_output=True)
        for client in clients:
            client.join()


def _read(port: int, session: dict[str, str], run: str, on_opened: Callable[[], None]) -> None:
    """Ask for what a run's page shows, again for what the server says has changed, until it ends."""
    asking, streaming = (http.client.HTTPConnection("127.0.0.1", port) for _ in range(2))
    path = f"/api/runs/{run}"
    curve = f"/api/curves?{urlencode([('run', run), ('metric', 'loss')])}"

    def ask(address: str) -> None:
        asking.request("GET", address, headers=session)
        answer = asking.getresponse()
        answer.read()
        assert answer.status == 200, address

    with contextlib.suppress(OSError, http.client.HTTPException):  # the server's end
        streaming.request("GET", f"/api/events?run={run}", headers=session)
        stream = streaming.getresponse()
        while line := stream.readline():
            if line.startswith(b"data: "):
                changed = json.loads(line[6:])["changed"]
                for address in [f"{path}{each}" for name in changed for each in ASKED.get(name, ())]:
                    ask(address)
                if "metrics" in changed:
                    ask(curve)
                on_opened()
    asking.close()
    streaming.close()


def _session(server: files.Server) -> dict[str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    host = f"{server.name}:{server.port}"
    headers = {"Host": host, "Origin": f"http://{host}"}
    connection.request("POST", "/enter", json.dumps({"code": new_code(server)}), headers)
    answer = connection.getresponse()
    cookie = str(answer.getheader("set-cookie")).partition(";")[0]
    token = json.loads(answer.read())["token"]
    connection.close()
    return {"Host": host, "Cookie": cookie, "X-Orch-Session": token}


def _identified(pid: int) -> list[Process]:
    found = identify(pid)
    return [found] if found is not None else []


def compare(what: str, watch: Callable[[OrchLaunch], contextlib.AbstractContextManager[list[Process]]]) -> None:
    """Print the row of one way to watch."""
    load, pairs, count = Load(), Pairs(), how_many(3)
    for number in range(1, count + 1):
        with workplace() as folder:
            env = environment(2 * ROUNDS + 1, STEPS)
            with ended(OrchLaunch(folder, {"script": "iterate.py"}, 1, NPROC, **env)) as launch:
                turn_of(launch, 0)  # warms up
                with watch(launch) as watching:
                    for turn in range(1, 2 * ROUNDS, 2):
                        _signal(watching, signal.SIGCONT)
                        pairs.ours.append(turn_of(launch, turn))
                        _signal(watching, signal.SIGSTOP)
                        pairs.theirs.append(turn_of(launch, turn + 1))
                launch.wait()
        say(f"launch {number} of {count}: {pairs.medians('/s', 0)}")
    note = f"{count} launch{'es' * (count > 1)}, {ROUNDS} turns of {STEPS} iterations each way"
    print_pairs(what, "the same job unwatched", Target(0.99, at_least=True), pairs, pairs.medians("/s", 0), load, note)


def _signal(processes: list[Process], number: signal.Signals) -> None:
    for process in processes:
        send_signal(process, number)


if __name__ == "__main__":
    compare("iterations a second, watched by `orch top`", top)
    compare(f"iterations a second, {PAGES} pages of the run open", pages)
