"""Taking turns: launches that stand at the same time run a few steps each, one after the other.

What else the machine does then meets all of them alike. A turn begins when the file `turn_N` appears.
"""

import os
import time
from pathlib import Path

from stamp import stamp

SECONDS = 180.0


class Turns:
    """Called at every step, at the same place; waits between turns, and stamps the rate of each.

    One step must follow the last turn, to end it.
    """

    def __init__(self) -> None:
        self.turns, self.steps = int(os.environ["BENCH_TURNS"]), int(os.environ["BENCH_STEPS"])
        self.calls = 0
        self.begun = 0.0

    def __call__(self) -> None:
        turn, calls = divmod(self.calls, self.steps)
        self.calls += 1
        if calls:
            return
        if turn:
            stamp("turn", rate=self.steps / (time.monotonic() - self.begun))
        if turn < self.turns:
            self._wait(Path(os.environ["BENCH_OUT"]) / f"turn_{turn}")
        self.begun = time.monotonic()

    def _wait(self, file: Path) -> None:
        end = time.monotonic() + SECONDS
        while not file.exists():
            if time.monotonic() > end:
                raise SystemExit("nobody wants a turn any more")
            time.sleep(0.01)
