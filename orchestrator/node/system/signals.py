"""The signals by which a scheduler stops the processes of its job. Every process of the job gets them.

A process of orch blocks these signals until it has installed its handlers.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGXCPU)
"""The signals upon which an agent stops. orch itself sends SIGXCPU to node 0's agent when the time limit of a job of
Grid Engine or PBS is near, because Grid Engine sends SIGUSR2 before every end of a job.
"""
NOTICES = (*STOP_SIGNALS, signal.SIGUSR1, signal.SIGHUP)
"""The signals by which schedulers announce the end or the suspension of a job."""


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
