"""Stops training after a signal. The signal handler only sets a flag, and all ranks agree on the step at which they
stop.

This module imports torch only for the agreement, so that the handler can be installed before slow imports.
"""

import atexit
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from orchestrator.protocol.schedulers import WARNINGS

CHECK_SECONDS = 0.5
"""Seconds between two agreements of the ranks. An agreement takes 0.2 to 0.6 ms, which is too long for each step."""

STOP_SIGNALS = (signal.SIGTERM, *WARNINGS)

_received: list[int] = []


def _on_signal(signum: int, _frame: FrameType | None) -> None:
    # A handler must do nothing else: a checkpoint taken here could interrupt a collective.
    _received.append(signum)


def install() -> bool:
    """Catch SIGTERM, SIGUSR1 and SIGUSR2 from now on. Return False outside of the main thread, because Python allows
    handlers only in the main thread.

    If a signal is ignored, it stays ignored, because the process that started this one converts that signal to SIGTERM.
    Worker processes with an interpreter of their own inherit ignored signals but no handlers, so an ignored signal does
    not end them. When the process exits, these signals are ignored. A scheduler and orch may both send SIGTERM, some
    milliseconds apart. Python restores the default action early in its exit, so the second SIGTERM would replace the
    exit code.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    atexit.register(_ignore)
    for signum in STOP_SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _on_signal)
    return True


def _ignore() -> None:
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold back the stop signals during the block. In processes that are started in the block, these signals stay
    blocked.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def obey_only(parent: int) -> None:
    """Let only SIGTERM from the process `parent` end this process. The stop signals must be blocked in this process
    already.

    A scheduler signals every process of a job, but a worker must continue until its rank has stopped.
    """
    threading.Thread(target=_obey, args=(parent,), daemon=True).start()


def _obey(parent: int) -> None:
    while True:
        found = signal.sigwaitinfo(STOP_SIGNALS)
        if (found.si_signo, found.si_pid) == (signal.SIGTERM, parent):
            os._exit(0)


@functools.cache
def protect_forks() -> None:
    """Protect processes that are forked later, such as a DataLoader's workers, from stop signals. Only SIGTERM from
    this process ends them.

    Programs that `subprocess` starts are not affected. A forked child that executes another program must unblock the
    signals itself.
    """
    held = threading.local()

    def hold() -> None:
        held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def let_go() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, held.mask)

    os.register_at_fork(before=hold, after_in_parent=let_go, after_in_child=lambda: obey_only(os.getppid()))


class Agreement:
    """Lets all ranks agree on the step at which they stop. Each rank calls this object once per step, and all ranks get
    the same answer.

    Once in several calls, an all-reduce shows all ranks whether one of them has received a signal. Rank 0's clock
    decides how many calls lie between two all-reduces. Rank 0 sends its elapsed time with the flag, so that all ranks
    do the next all-reduce at the same call.
    """

    def __init__(self, seconds: float = CHECK_SECONDS) -> None:
        self.seconds = seconds
        self.stopping = False
        self._interval = 1
        self._calls = 0
        self._since = time.monotonic()

    def __call__(self) -> bool:
        """Return whether all ranks stop at this call. All ranks must call this."""
        if self.stopping:
            return True
        self._calls += 1
        if self._calls >= self._interval:
            self._agree()
        return self.stopping

    def now(self) -> bool:
        """Agree at this call, without waiting for the interval. Return whether all ranks stop. All ranks must call
        this.
        """
        if not self.stopping:
            self._calls += 1
            self._agree()
        return self.stopping

    def _agree(self) -> None:
        from orchestrator.training.distributed import group

        elapsed = time.monotonic() - self._since
        mine = [float(bool(_received)), elapsed if group.rank() == 0 else 0.0]
        flags, elapsed = group.sum_over_ranks(mine)
        # The interval at most doubles, so that one quick call does not postpone the next check by minutes.
        wanted = int(self._calls * self.seconds / max(elapsed, 1e-6))
        self._interval = max(1, min(wanted, 2 * self._interval))
        self._calls = 0
        self._since = time.monotonic()
        self.stopping = flags > 0
