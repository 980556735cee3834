"""Rank 0 prints BENCH_FLOOD bytes a second, in lines, between its steps; nothing where that is not set."""

import os
import sys
import time

LINE = "x" * 127 + "\n"


class Flood:
    """Called at every step: prints what is owed by now, and nothing for the pauses between two turns."""

    def __init__(self) -> None:
        self.rate = float(os.environ.get("BENCH_FLOOD", "0")) if os.environ.get("RANK") == "0" else 0.0
        self.since, self.owed = time.monotonic(), 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        self.owed += min(now - self.since, 0.1) * self.rate
        self.since = now
        lines = int(self.owed // len(LINE))
        if lines:
            sys.stdout.write(LINE * lines)
            sys.stdout.flush()
            self.owed -= lines * len(LINE)
