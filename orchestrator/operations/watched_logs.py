"""Copies ranks' logs from the nodes while a person is viewing them."""

from __future__ import annotations

import contextlib
import threading
from typing import Final

from orchestrator.errors import OrchError
from orchestrator.looking.run import bringing_logs, come_anyway
from orchestrator.runs.files.logs import Selection
from orchestrator.runs.store import RunDir

LEASE_SECONDS: Final = 60.0  # how long a log is copied after the last request
MOST: Final = 16  # logs that are copied at a time, because each needs threads and a connection to its node


class WatchedLogs:
    """Copies the logs of live runs for as long as they are requested. Several threads may call it."""

    def __init__(self, seconds: float = LEASE_SECONDS) -> None:
        self._seconds, self._lock = seconds, threading.Lock()
        self._asked: dict[tuple[str, int], threading.Event] = {}

    def ask(self, run: RunDir, rank: int) -> None:
        """Copy one rank's log from now on, until a minute after the last request for it.

        At most MOST logs are copied at a time. A request for a further log is ignored.
        """
        if come_anyway(run, Selection(rank)):
            return
        with self._lock:
            asked = self._asked.get((run.run_id, rank))
            if asked is None and len(self._asked) < MOST:
                asked = self._asked[run.run_id, rank] = threading.Event()
                threading.Thread(target=self._bring, args=(run, rank, asked), daemon=True).start()
            if asked is not None:
                asked.set()

    def _bring(self, run: RunDir, rank: int, asked: threading.Event) -> None:
        try:
            # If the record can't be read or the machine can't be reached, the run's state says so.
            with contextlib.suppress(OrchError, OSError), bringing_logs(run, Selection(rank)):
                while asked.wait(self._seconds):
                    asked.clear()
                    if come_anyway(run, Selection(rank)):
                        return
        finally:
            with self._lock:
                del self._asked[run.run_id, rank]
