"""The signals by which a scheduler stops a whole node: every process of the job gets them, ours only when ready."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold them back, also from processes that are started meanwhile, until those call `let_through`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        let_through()


def hold_back_for_good() -> None:
    """Hold back the signals during the last lines of a process that is going anyway."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def let_through() -> None:
    """Let what was held back arrive now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
