"""The sign of life of this machine's supervisor. Without it for CLAIM_SECONDS, other machines take its runs.

A supervisor that was stopped for so long may have lost its runs. It sends no request any more, and starts again as a
new process, which takes only runs that no other machine has.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from orchestrator.errors import BackendError
from orchestrator.node.system.processes import identify
from orchestrator.protocol.files import write_json
from orchestrator.runs.claims import CLAIM_SECONDS, here, record_name
from orchestrator.supervisor.background import ARGV, FULL

BEAT_SECONDS: Final = CLAIM_SECONDS / 6
CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # it counts the time in which a laptop sleeps


def start_again() -> None:
    """Replace this process by a new supervisor. The kernel ends all threads and closes all files."""
    try:
        os.execv(sys.executable, ARGV)  # noqa: S606
    finally:  # orch was removed meanwhile; the next command starts a supervisor
        os._exit(1)


class Heartbeat:
    """Renews the record of this process, in a thread. `start_again` is called after a pause that was too long."""

    def __init__(self, root: Path, start_again: Callable[[], object], seconds: float = CLAIM_SECONDS) -> None:
        self.path, self.start_again, self.seconds = root / record_name(here()), start_again, seconds
        self.last = time.clock_gettime(CLOCK)
        self.ended = threading.Event()
        me = identify(os.getpid())
        assert me is not None
        self.record = {"pid": me.pid, "started": me.started, "host": here()}
        with contextlib.suppress(OSError):  # if the disk is full, the record is written later
            write_json(self.path, self.record, durable=False)
        threading.Thread(target=self._beat, daemon=True).start()

    @property
    def is_late(self) -> bool:
        """Return True if other machines may soon take the runs of this process. They wait longer than this process."""
        return time.clock_gettime(CLOCK) - self.last > self.seconds * 2 / 3

    def check(self) -> None:
        """Raise BackendError if this process may have lost its runs."""
        if self.is_late:
            raise BackendError("this supervisor was stopped for too long, and does not act any more", transient=True)

    def _beat(self) -> None:
        while not self.ended.wait(min(BEAT_SECONDS, self.seconds / 6)):
            if self.is_late:
                self.start_again()
            begun = time.clock_gettime(CLOCK)
            try:
                if self.path.exists():
                    os.utime(self.path)
                else:
                    write_json(self.path, self.record, durable=False)
            except OSError as error:
                if error.errno not in FULL:  # on a full disk, no other machine can take a run either
                    continue
            self.last = begun
