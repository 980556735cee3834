"""The logs of ranks that somebody looks at, brought here from their nodes for as long as they are asked for."""

from __future__ import annotations

import contextlib
import threading
from typing import Final

from orchestrator.errors import OrchError
from orchestrator.operations.runs import bringing_logs, come_anyway
from orchestrator.runs.files.logs import Selection
from orchestrator.runs.store import RunDir

LEASE_SECONDS: Final = 60.0  # that a log is brought after somebody has asked for it
MOST: Final = 16  # logs at once: each has threads, and a connection to its node


class WatchedLogs:
    """Has logs of runs that go on grow here; may be asked from any thread."""

    def __init__(self, seconds: float = LEASE_SECONDS) -> None:
        self._seconds, self._lock = seconds, threading.Lock()
        self._asked: dict[tuple[str, int], threading.Event] = {}

    def ask(self, run: RunDir, rank: int) -> None:
        """Have one rank's log brought from now on, until nobody has asked for a minute; of too many, not this one."""
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
            # A record that can't be read, a machine out of reach: the state of the run says so.
            with contextlib.suppress(OrchError, OSError), bringing_logs(run, Selection(rank)):
                while asked.wait(self._seconds):
                    asked.clear()
                    if come_anyway(run, Selection(rank)):
                        return
        finally:
            with self._lock:
                del self._asked[run.run_id, rank]
