"""Finds and ends the processes of a run. A process belongs to a run if its environment has the run's mark, ORCH_MARK.
Processes are never found by their names.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from orchestrator.node.system.kernel_files import read_bytes, read_text

MARK = "ORCH_MARK"


@dataclass(frozen=True)
class Process:
    """A process, identified by its pid together with its start time. The start time is in clock ticks since the boot,
    on macOS in milliseconds since 1970.
    """

    pid: int
    started: int
    command: str = ""


def mark(run_id: str, node_rank: int) -> str:
    """Return the mark of a node: the value of ORCH_MARK, which the node's launcher and all its descendants have in
    their environment.
    """
    return f"{run_id}/{node_rank}"


def identify(pid: int) -> Process | None:
    """Return the running process with this pid, or None if it does not exist or is a zombie."""
    if sys.platform == "darwin":
        from orchestrator.node.system.macos import start_of

        return Process(pid, *found) if (found := start_of(pid)) else None
    name, fields = _stat(pid)
    return Process(pid, int(fields[19]), name) if fields and fields[0] not in "ZX" else None


def _stat(pid: int) -> tuple[str, list[str]]:
    """Return the name of a process's command, and the fields that follow it in /proc/PID/stat. If the process has
    ended, there are no fields.
    """
    name, _, rest = read_text(f"/proc/{pid}/stat", "replace").partition("(")[2].rpartition(")")
    return name, rest.split()


def status_of(pid: int, name: str) -> str:
    """Return a field of /proc/PID/status, such as `NSpid`; "" if the field is missing or the process has ended. `pid`
    may also be the number of a thread.
    """
    lines = read_text(f"/proc/{pid}/status").split("\n")
    return next((line[len(name) + 1 :].strip() for line in lines if line.startswith(f"{name}:")), "")


def pid_inside(pid: int) -> int:
    """Return the pid that a process has inside its container. For a process outside of a container, return `pid`."""
    pids = status_of(pid, "NSpid").split()
    return int(pids[-1]) if pids else pid


def owner_of(pid: int) -> int | None:
    """Return the uid of a process's user, or None if the process has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger has stopped a process."""
    if sys.platform == "darwin":
        from orchestrator.node.system import macos

        return macos.is_stopped(pid)
    return state_of(pid) in ("T", "t")


def state_of(pid: int) -> str:
    """Return the state of a process from /proc: R, S, D (waits for a disk), T (stopped) or Z. Return ? if the process
    has ended.
    """
    return next(iter(_stat(pid)[1]), "?")


def is_alive(process: Process) -> bool:
    """Return whether this process still runs. A newer process with the same pid does not count."""
    found = identify(process.pid)
    return found is not None and found.started == process.started


@dataclass(frozen=True)
class Marked:
    """A running process whose environment has ORCH_MARK, the mark of a run."""

    process: Process
    owner: int  # uid
    run_id: str
    node_rank: str
    run_dir: str  # the run's folder, from its environment or its command line; empty if neither has it


def marked_processes() -> Iterator[Marked]:
    """Yield all running processes that have the mark of any run and that this user can inspect, except this process."""
    if sys.platform == "darwin":  # no run has processes on macOS
        return
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                owner, entries = os.fstat(file.fileno()).st_uid, file.read().split(b"\0")
        except OSError:  # the process has ended, or belongs to another user
            continue
        run_id, slash, node_rank = _value(entries, MARK).rpartition("/")
        process = identify(int(name)) if slash and run_id else None
        if process is not None:
            yield Marked(process, owner, run_id, node_rank, _value(entries, "ORCH_RUN_DIR") or _archive_folder(name))


def _value(environment: list[bytes], name: str) -> str:
    """Return the value of a variable in an environment; "" if the variable is not set."""
    start = f"{name}=".encode()
    found = next((entry for entry in environment if entry.startswith(start)), b"")
    return found[len(start) :].decode("utf-8", "surrogateescape")


def variable_of(pid: int, name: str) -> str:
    """Return a variable from a process's initial environment; "" if the variable is not set or can't be read."""
    return _value(read_bytes(f"/proc/{pid}/environ").split(b"\0"), name)


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent, or 0 if the process has ended."""
    fields = _stat(pid)[1]
    return int(fields[1]) if fields else 0


def _archive_folder(pid: str) -> str:
    """Return the folder of the archive node.pyz that a process runs; "" if the process runs no such archive.

    A launcher runs the archive in the run's folder, which the launcher's environment does not name.
    """
    words = read_text(f"/proc/{pid}/cmdline").split("\0")
    return next((os.path.dirname(word) for word in words if word.endswith("/node.pyz")), "")


def marked(run_id: str, node_rank: int | None = None) -> list[Process]:
    """Return all running processes that have the mark of a run, or of one of its nodes, and that this user can inspect.
    This process is left out.
    """
    found = (each for each in marked_processes() if each.run_id == run_id)
    return [each.process for each in found if node_rank is None or each.node_rank == str(node_rank)]


def send_signal(process: Process, number: int) -> bool:
    """Signal a process through a pidfd, so that no newer process with its pid gets the signal. Return False if the
    process has ended.
    """
    if sys.platform == "darwin":  # macOS has no pidfd
        with contextlib.suppress(ProcessLookupError):
            if is_alive(process):
                os.kill(process.pid, number)
                return True
        return False
    try:
        descriptor = os.pidfd_open(process.pid)
    except (ProcessLookupError, OSError):
        return False
    try:
        if not is_alive(process):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
        return True
    finally:
        os.close(descriptor)


def wait_gone(processes: list[Process], timeout: float) -> list[Process]:
    """Wait up to `timeout` seconds until all processes have ended. Return the processes that still run.

    The kernel reports each end through a pidfd, so no polling is needed.
    """
    if sys.platform == "darwin":
        from orchestrator.node.system import macos

        macos.wait_gone([process.pid for process in processes if is_alive(process)], timeout)
        return [process for process in processes if is_alive(process)]
    poller, descriptors = select.poll(), {}
    for process in processes:
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            continue
        if is_alive(process):
            poller.register(descriptor, select.POLLIN)
            descriptors[descriptor] = process
        else:
            os.close(descriptor)
    end = time.monotonic() + timeout
    while descriptors and (left := end - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(left * 1000):
            poller.unregister(descriptor)
            os.close(descriptor)
            del descriptors[descriptor]
    for descriptor in descriptors:
        os.close(descriptor)
    return [process for process in descriptors.values() if is_alive(process)]


def descendants(pid: int) -> list[Process]:
    """Return all running descendants of a process, including adopted orphans, with or without a mark."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(parent_of(int(name)), []).append(int(name))
    found, front = [], [pid]
    while front:
        below = [child for each in front for child in children.get(each, [])]
        found += [process for child in below if (process := identify(child)) is not None]
        front = below
    return found


def ancestors(pid: int) -> list[int]:
    """Return the pids of a process's ancestors, with the parent first. Ancestors outside of this pid namespace are
    left out.
    """
    found: list[int] = []
    while pid > 1 and (pid := parent_of(pid)):
        found.append(pid)
    return found


def end_descendants(pid: int, timeout: float = 5.0) -> int:
    """Kill all descendants of a process, with or without a mark. Return the number of killed processes."""
    killed: set[Process] = set()
    end = time.monotonic() + timeout
    while (found := descendants(pid)) and time.monotonic() < end:
        for process in found:
            send_signal(process, signal.SIGKILL)
        killed.update(found)
        wait_gone(found, max(0.05, end - time.monotonic()))
    return len(killed)


def end_marked(
    run_id: str, node_rank: int | None = None, keep: Collection[int] = (), timeout: float = 5.0
) -> tuple[int, list[Process]]:
    """Kill all processes that have the mark of a run or of one of its nodes, except those in `keep`. Return (number
    killed, survivors).

    The search is repeated until it finds no process twice in a row, because a process may fork a child after a search
    has listed all pids.
    """
    killed: set[Process] = set()
    end, empty_looks = time.monotonic() + timeout, 0
    while empty_looks < 2:
        found = [process for process in marked(run_id, node_rank) if process.pid not in keep]
        empty_looks = 0 if found else empty_looks + 1
        for process in found:
            send_signal(process, signal.SIGKILL)
        killed.update(found)
        wait_gone(found, max(0.05, end - time.monotonic()))
        if found and time.monotonic() >= end:
            return len(killed), [process for process in marked(run_id, node_rank) if process.pid not in keep]
    return len(killed), []
