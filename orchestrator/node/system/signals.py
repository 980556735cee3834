"""Blocks the signals by which a scheduler stops a job until a process has installed its handlers, and finds processes
that have handlers of their own.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from orchestrator.node.system.processes import descendants, state_of, status_of
from orchestrator.protocol.schedulers import STOP_SIGNALS


def name_of(number: int) -> str:
    """Return the name of a signal. A real-time signal has no name, so return a text such as "signal 41"."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Block the stop signals within a `with` block. Processes that are started in the block inherit the blocked
    signals.

    Such a process calls `let_through` when it is ready for the signals.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        let_through()


def hold_back_for_good() -> None:
    """Block the stop signals in a process that is about to end, so that they do not change its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def let_through() -> None:
    """Unblock the stop signals. Signals that were sent while they were blocked arrive now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def is_handled(pid: int, number: int) -> bool:
    """Return True if a process, or one that it has started, has a handler of its own for this signal. A process that
    has ended counts as one that has handled the signal.
    """
    if state_of(pid) in ("?", "Z"):
        return True
    pids = (pid, *(process.pid for process in descendants(pid)))
    return any(int(status_of(each, "SigCgt") or "0", 16) >> (number - 1) & 1 for each in pids)
