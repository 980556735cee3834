"""Stopping by signal: a handler that only sets a flag, and an agreement of all ranks on the step to stop at.

This module imports torch only when it is asked to agree, so that the handler stands before the slow imports.
"""

import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CHECK_SECONDS = 0.5
"""How often the ranks agree: a compromise between 0.2 to 0.6 ms a check and the second that a stop may take."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR2)

_received: list[int] = []


def _on_signal(signum: int, _frame: FrameType | None) -> None:
    # Nothing else may happen here: a checkpoint taken inside a handler meets half-done collectives.
    _received.append(signum)


def install() -> bool:
    """Catch SIGTERM and SIGUSR2 from now on; False outside the main thread, where Python allows no handlers.

    One that is ignored stays so: who started this process makes a TERM of it, and workers with an interpreter of their
    own, which inherit that it is ignored, but no handler, live through it.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    for signum in STOP_SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _on_signal)
    return True


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold stop signals back within the block; processes started in it are born with them held back, for good."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def obey_only(parent: int) -> None:
    """Let SIGTERM of that process end this one, and no other stop signal; it was started with them held back.

    A scheduler signals every process of a job; a worker of a rank must go on until the rank has stopped.
    """
    threading.Thread(target=_obey, args=(parent,), daemon=True).start()


def _obey(parent: int) -> None:
    while True:
        found = signal.sigwaitinfo(STOP_SIGNALS)
        if (found.si_signo, found.si_pid) == (signal.SIGTERM, parent):
            os._exit(0)


@functools.cache
def protect_forks() -> None:
    """Protect what this process forks from now on, such as a DataLoader's workers: only its own SIGTERM ends them.

    Programs that it starts by `subprocess` are none of these. A child that is forked in order to become another
    program must let the signals through again by itself.
    """
    held = threading.local()

    def hold() -> None:
        held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def let_go() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, held.mask)

    os.register_at_fork(before=hold, after_in_parent=let_go, after_in_child=lambda: obey_only(os.getppid()))


def received() -> str | None:
    """Return the name of the first stop signal that this process has received, if any."""
    return signal.Signals(_received[0]).name if _received else None


class Agreement:
    """Answers "stop here?" alike on all ranks, by a flag reduced every few calls.

    The number of calls between two reductions comes from rank 0's clock and travels with the flag, so that all
    ranks reduce at the same call although their clocks differ.
    """

    def __init__(self, seconds: float = CHECK_SECONDS) -> None:
        self.seconds = seconds
        self.stopping = False
        self._interval = 1
        self._calls = 0
        self._since = time.monotonic()

    def __call__(self) -> bool:
        """Return whether all ranks stop at this call; collective: every rank must call it equally often."""
        if self.stopping:
            return True
        self._calls += 1
        if self._calls >= self._interval:
            self._agree()
        return self.stopping

    def now(self) -> bool:
        """Agree at this call, whatever the interval; collective."""
        if not self.stopping:
            self._calls += 1
            self._agree()
        return self.stopping

    def _agree(self) -> None:
        from orchestrator.training.distributed import group  # noqa: PLC0415 - torch comes after the handlers

        elapsed = time.monotonic() - self._since
        mine = [float(bool(_received)), elapsed if group.rank() == 0 else 0.0]
        flags, elapsed = group.sum_over_ranks(mine)
        # Doubling at most, so that one quick call does not put the next check minutes away.
        wanted = int(self._calls * self.seconds / max(elapsed, 1e-6))
        self._interval = max(1, min(wanted, 2 * self._interval))
        self._calls = 0
        self._since = time.monotonic()
        self.stopping = flags > 0
