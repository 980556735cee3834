"""Worker threads for blocking work. They are kept for reuse, because a limit may allow no new thread later."""

from __future__ import annotations

import queue
import threading
from typing import Callable

Work = Callable[[], None]


class Workers:
    """A pool of threads that do blocking work and then wait for more work. If no more threads can be started, the
    existing threads do all work.

    A worker is a daemon thread, so that a worker which hangs on a dead disk does not delay the exit of the process.
    """

    def __init__(self) -> None:
        self.works: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.threads = 0
        self.free = 0  # the number of idle workers minus the number of queued tasks

    def start_one(self) -> bool:
        """Start a worker. Return False if the system allows no more threads."""
        try:
            threading.Thread(target=self._serve, daemon=True).start()
        except RuntimeError:  # a limit on processes and threads, or no memory for a stack
            return False
        with self.lock:
            self.threads, self.free = self.threads + 1, self.free + 1
        return True

    def do(self, work: Work) -> None:
        """Pass the work to an idle worker. If no worker is idle, start a new worker. If that fails, the work waits for
        the next idle worker.
        """
        with self.lock:
            self.free -= 1
            is_short = self.free < 0
        if is_short and not self.start_one() and not self.threads:
            with self.lock:
                self.free += 1
            work()  # there is no worker, so the caller does the work
            return
        self.works.put(work)

    def _serve(self) -> None:
        while True:
            self.works.get()()
            with self.lock:
                self.free += 1
