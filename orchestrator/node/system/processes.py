"""Processes of one run, found by the mark in their environment and their start time, never by a name."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

MARK = "ORCH_MARK"


@dataclass(frozen=True)
class Process:
    """A process as it was seen; pid and start time (clock ticks since boot) together are its identity."""

    pid: int
    started: int
    command: str = ""


def mark(run_id: str, node_rank: int) -> str:
    """Return the value that a node's launcher and all its descendants carry in ORCH_MARK."""
    return f"{run_id}/{node_rank}"


def identify(pid: int) -> Process | None:
    """Return the living process with this number; None when there is none or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            text = stat.read()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    return Process(pid, int(fields[19]), name)


STOPPED = ("T", "t")  # by a signal, or by a debugger


def state_of(pid: int) -> str:
    """Return a process's state as /proc tells it: R, S, D (waits for a disk), T (stopped), Z; ? where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"


def is_alive(process: Process) -> bool:
    """Return whether this very process, not another with its number, is still running."""
    found = identify(process.pid)
    return found is not None and found.started == process.started


@dataclass(frozen=True)
class Marked:
    """A process that carries a run's mark."""

    process: Process
    owner: int  # the number of its user
    run_id: str
    node_rank: str
    run_dir: str  # as its environment or its command line tells; empty where neither does


def marked_processes() -> Iterator[Marked]:
    """Find every living process that this user may look at and that carries any run's mark, but the caller."""
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                owner, entries = os.fstat(file.fileno()).st_uid, file.read().split(b"\0")
        except OSError:  # gone meanwhile, or another user's
            continue
        run_id, slash, node_rank = _value(entries, MARK).rpartition("/")
        process = identify(int(name)) if slash and run_id else None
        if process is not None:
            yield Marked(process, owner, run_id, node_rank, _value(entries, "ORCH_RUN_DIR") or _archive_folder(name))


def _value(environment: list[bytes], name: str) -> str:
    """Return the value of a variable; empty where there is none."""
    start = f"{name}=".encode()
    found = next((entry for entry in environment if entry.startswith(start)), b"")
    return found[len(start) :].decode("utf-8", "surrogateescape")


def variable_of(pid: int, name: str) -> str:
    """Return a variable as a process was started with it; empty where there is none, or it may not be looked at."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return _value(file.read().split(b"\0"), name)
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    """Return the number of a process's parent; 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return int(stat.read().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _archive_folder(pid: str) -> str:
    """Return the folder of the archive that a process runs: a launcher is told its run directory by no other way."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode("utf-8", "surrogateescape").split("\0")
    except OSError:
        return ""
    return next((os.path.dirname(word) for word in words if word.endswith("/node.pyz")), "")


def marked(run_id: str, node_rank: int | None = None) -> list[Process]:
    """Return every living process of the run (on one of its nodes) that this user may look at, but the caller."""
    found = (each for each in marked_processes() if each.run_id == run_id)
    return [each.process for each in found if node_rank is None or each.node_rank == str(node_rank)]


def send_signal(process: Process, number: int) -> bool:
    """Signal this very process; False when it is gone. Through a pidfd, so that a reused number is safe."""
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
    """Return those that are still there after `timeout` seconds; waits on pidfds, not by polling."""
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
    """Return every living process below this one, orphans that it adopted included, whatever their environment says."""
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
    """Return the numbers of the processes above this one, as far as this process can see them."""
    found: list[int] = []
    while pid > 1 and (pid := parent_of(pid)):
        found.append(pid)
    return found


def end_descendants(pid: int, timeout: float = 5.0) -> int:
    """Kill the processes below this one that threw their mark away; return how many."""
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
    """Kill every process that carries the mark, but those to `keep`; return (how many were killed, who survived).

    Repeats until two looks in a row find none: a process may fork between being listed and being looked at.
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
