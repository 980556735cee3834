"""Blocks the signals by which a scheduler stops a job until a process has installed its handlers, and finds processes
that have handlers of their own.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from orchestrator.node.system.processes import descendants, state_of, status_of
from orchestrator.protocol.schedulers import STOP_SIGNALS

# A process that catches more signals than this does not expect any of them. The runtime of Go, in which wandb-core is
# written, catches almost all.
MOST_EXPECTED = 50


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
    has ended counts as one that has handled the signal. A process that catches almost all signals does not count.
    """
    if state_of(pid) in ("?", "Z"):
        return True
    caught = [int(status_of(each, "SigCgt") or "0", 16) for each in (pid, *(one.pid for one in descendants(pid)))]
    return any(each >> (number - 1) & 1 and bin(each).count("1") <= MOST_EXPECTED for each in caught)
