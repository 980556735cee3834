"""Reads the kernel's log for lines in which NVIDIA's driver reports a GPU fault (Xid)."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable

MOST_LINES = 5
MOST_CHARS = 300
RECENT_SECONDS = 600.0
RECORD_BYTES = 8192
_RECORD = re.compile(r"\d+,\d+,(\d+),[^;]*;(NVRM: .*(?:Xid|fallen off|GPU).*)")


def newest_gpu_faults() -> list[str]:
    """Return the newest lines about GPU faults from the last 10 minutes; empty if this user may not read the log."""
    records: list[str] = []
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        while record := _next(log):
            records.append(record)
    except OSError:  # the kernel raises BlockingIOError after the last record
        pass
    finally:
        os.close(log)
    return gpu_faults_in(records, time.clock_gettime(time.CLOCK_BOOTTIME))


def gpu_faults_in(records: Iterable[str], now: float) -> list[str]:
    """Return the newest lines about GPU faults among the records of the kernel's log. `now` is the time in seconds
    since the boot. This does no I/O.
    """
    found = [match for record in records if (match := _RECORD.match(record))]
    recent = [match[2] for match in found if int(match[1]) / 1e6 >= now - RECENT_SECONDS]
    return [line[:MOST_CHARS] for line in recent[-MOST_LINES:]]


def _next(log: int) -> str:
    """Return the next record of the kernel's log. Each read returns one record."""
    while True:
        # BrokenPipeError means that the record was overwritten before it was read. The next read continues after it.
        with contextlib.suppress(BrokenPipeError):
            return os.read(log, RECORD_BYTES).decode("utf-8", "replace")
