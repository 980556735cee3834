"""Processes found by mark and start time: real ones, started and ended here by their recorded numbers."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.node.system import processes
from orchestrator.node.system.processes import (
    MARK,
    Process,
    end_marked,
    identify,
    is_alive,
    mark,
    marked,
    send_signal,
    wait_gone,
)
from tests.patience import PATIENCE
from tests.testbed.machine import wait_until

# Leaves its session and forks twice, so that no parent, session or group leads to it; then says its number.
DAEMON = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
print(os.getpid(), flush=True)
os.close(1)
time.sleep(600)
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def run_id() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts programs, and ends them when the test does not."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*argv: str, **env: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, env={**os.environ, **env}, stdout=subprocess.PIPE)
        running.append(process)
        environment = Path(f"/proc/{process.pid}/environ")
        # It is laid out a moment after Popen knows that the program was started; one that has ended has none.
        with contextlib.suppress(ProcessLookupError):
            while process.poll() is None and not environment.read_bytes():
                continue
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def seen(process: subprocess.Popen[bytes]) -> Process:
    found = identify(process.pid)
    assert found is not None
    return found


def daemon(start: Start, run_id: str, node: int = 0) -> Process:
    launcher = start(sys.executable, "-S", "-c", DAEMON, **{MARK: mark(run_id, node)})
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    launcher.wait()
    found = identify(pid)
    assert found is not None
    return found


def test_this_process_knows_itself() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert is_alive(me)
    assert me.started > 0


def test_a_zombie_is_not_alive(start: Start) -> None:
    child = start("sleep", "600")
    process = seen(child)
    assert is_alive(process)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped
    assert not is_alive(process)
    assert identify(child.pid) is None
    assert wait_gone([process], PATIENCE) == []


def test_another_process_with_the_same_number_is_another(start: Start) -> None:
    child = start("sleep", "600")
    before = Process(child.pid, seen(child).started - 1)
    assert not is_alive(before)
    assert not send_signal(before, signal.SIGKILL)
    assert wait_gone([before], PATIENCE) == []
    assert child.poll() is None


def test_a_number_that_nobody_has() -> None:
    nobody = Process(2**22 + 1, 1)
    assert identify(nobody.pid) is None
    assert not is_alive(nobody)
    assert not send_signal(nobody, signal.SIGTERM)


def test_names_with_spaces_and_parentheses_are_read(start: Start, tmp_path) -> None:
    program = tmp_path / "a) R (b"
    program.symlink_to("/bin/sleep")
    child = start(str(program), "600")
    wait_until(lambda: seen(child).command == "a) R (b", "its exec")
    assert is_alive(seen(child))


def test_a_signal_reaches_its_process(start: Start) -> None:
    child = start("sleep", "600")
    assert send_signal(seen(child), signal.SIGTERM)
    assert child.wait(PATIENCE) == -signal.SIGTERM


def test_waiting_returns_who_is_left(start: Start) -> None:
    short, long = start("sleep", "600"), start("sleep", "600")
    both = [seen(short), seen(long)]
    assert wait_gone(both, 0.1) == both
    short.kill()
    assert wait_gone(both[:1], PATIENCE) == []
    assert wait_gone(both, 0.1) == [both[1]]
    long.kill()
    assert wait_gone(both, PATIENCE) == []
    assert wait_gone([], PATIENCE) == []


def test_a_daemon_is_found_by_its_mark(start: Start, run_id: str) -> None:
    process = daemon(start, run_id, node=1)
    assert os.getsid(process.pid) != os.getsid(0)
    assert marked(run_id) == [process]
    assert marked(run_id, 1) == [process]
    assert marked(run_id, 0) == marked(run_id, 10) == marked(run_id[:-1]) == []
    assert end_marked(run_id) == (1, [])


def test_only_the_marked_are_ended(start: Start, run_id: str) -> None:
    process = daemon(start, run_id)
    others = [
        start("sleep", "600"),
        start("sleep", "600", **{MARK: mark(f"{run_id}x", 0)}),
        start("sleep", "600", **{MARK: mark(run_id, 1)}),
        start("sleep", "600", **{f"X{MARK}": mark(run_id, 0)}),
        start(sys.executable, "-S", "-c", "import time; time.sleep(600)", f"{MARK}={mark(run_id, 0)}"),
    ]
    assert end_marked(run_id, 0) == (1, [])
    assert not is_alive(process)
    assert [other.poll() for other in others] == [None] * 5
    assert end_marked(run_id, 0) == (0, [])


def test_the_one_to_keep_is_kept(start: Start, run_id: str) -> None:
    kept, other = (start("sleep", "600", **{MARK: mark(run_id, 0)}) for _ in range(2))
    assert end_marked(run_id, 0, keep=[kept.pid]) == (1, [])
    assert (kept.poll(), other.wait(PATIENCE)) == (None, -signal.SIGKILL)


def test_those_that_fork_while_they_are_being_killed_are_ended_too(start: Start, run_id: str) -> None:
    forker = (
        "import os, time\nfor _ in range(100):\n  time.sleep(0.001)\n  if os.fork(): time.sleep(600)\ntime.sleep(600)"
    )
    start(sys.executable, "-S", "-c", forker, **{MARK: mark(run_id, 0)})
    while len(marked(run_id)) < 5:
        time.sleep(0.001)
    killed, survivors = end_marked(run_id)
    assert (killed >= 5, survivors) == (True, [])
    assert marked(run_id) == []


def test_an_endless_supply_does_not_hold_up_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some that can't be killed, or a program that forks faster than it is found."""
    endless = iter(range(10**6))
    monkeypatch.setattr(processes, "marked", lambda *_: [Process(2**22 + 1 + next(endless), 1)])
    _, survivors = end_marked("any", timeout=0.2)  # which returns
    assert survivors


def test_this_process_is_never_among_the_marked(run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.suppress(OSError):
        monkeypatch.setenv(MARK, mark(run_id, 0))
    assert marked(run_id) == []
