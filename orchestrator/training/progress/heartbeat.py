"""Heartbeats: the progress that a rank reports while it runs.

A heartbeat is a JSON line, padded to 512 bytes. It overwrites the previous heartbeat in place, so that a reader always
sees exactly one.
"""

import json
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

HEARTBEAT_BYTES = 512
MIN_SECONDS = 0.1  # seconds between two heartbeats of one phase
REASON_CHARS = 100  # the last characters of a failed save's reason are kept, because a heartbeat has only 512 bytes
Batch = TypeVar("Batch")
_ONCE_KNOWN = ("loaded", "first", "second")  # fields that are left out until they are known
PHASES = ("start", "compile", "train", "eval", "save", "done")


@dataclass(frozen=True)
class Heartbeat:
    """The progress of a rank.

    `time` is this machine's monotonic clock. `rate` is in samples per second, and `eta` in seconds. `waited` is the
    number of seconds in which the rank waited for its data, or None if that is not measured. `saves` counts the
    attempts to save a checkpoint, and `saves_failed` counts the failed ones. If the last attempt failed, `unsaved` is
    the reason. `loaded` is the step of the checkpoint that was loaded. If none was loaded, `first` and `second` are the
    first two steps of this process.
    """

    step: int = 0
    total: int | None = None
    epoch: int = 0
    phase: str = "start"
    time: float = 0.0
    loss: float | None = None
    rate: float | None = None
    eta: float | None = None
    waited: float | None = None
    saves: int = 0
    saves_failed: int = 0
    unsaved: str = ""
    loaded: int | None = None
    first: int | None = None
    second: int | None = None


def encode(heartbeat: Heartbeat) -> bytes:
    """Return `heartbeat` as a JSON line of exactly 512 bytes, padded with spaces before its newline."""
    values = {key: value for key, value in asdict(heartbeat).items() if value is not None or key not in _ONCE_KNOWN}
    for key, value in values.items():
        if isinstance(value, float):
            # JSON has no NaN, and a diverged loss must not prevent the heartbeat.
            values[key] = round(value, 6) if math.isfinite(value) else None
    return json.dumps(values).encode().ljust(HEARTBEAT_BYTES - 1) + b"\n"


class HeartbeatFile:
    """The heartbeat file of a rank. It is opened once. Without a path, nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644) if path else None
        self._written = -math.inf
        self._phase = ""
        self._saves, self._saves_failed = 0, 0
        self.unsaved = ""
        self._loaded: int | None = None
        self._steps: tuple[int, ...] = ()
        self._last = Heartbeat()
        self._reports_compilations = False
        self._waited: float | None = None

    def waiting(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches, and measure how long the rank waits for them. Later heartbeats report the total."""
        found = iter(batches)
        while True:
            begun = time.monotonic()
            try:
                batch = next(found)
            except StopIteration:
                return
            self._waited = (self._waited or 0.0) + time.monotonic() - begun
            yield batch

    def saved(self, problem: str = "") -> None:
        """Count a save. If `problem` is given, it is the reason why the save failed. Later heartbeats report the counts
        and the reason.
        """
        self._saves += 1
        self._saves_failed += bool(problem)
        self.unsaved = problem

    def resumed(self, step: int) -> None:
        """Store the step of the checkpoint that was loaded. Later heartbeats report it."""
        self._loaded = step

    def stepped(self, step: int) -> None:
        """Store the step if it is one of the first two steps of this process. Later heartbeats report both."""
        if len(self._steps) < 2 and (not self._steps or step > self._steps[0]):
            self._steps = (*self._steps, step)

    def due(self, phase: str = "train") -> bool:
        """Return whether a heartbeat is due: at once in a new phase, otherwise at most ten times per second."""
        if self._fd is None:
            return False
        return phase != self._phase or time.monotonic() - self._written >= MIN_SECONDS

    def write(self, heartbeat: Heartbeat) -> None:
        """Write `heartbeat` with the present time, if a heartbeat is due."""
        if self._fd is None or not self.due(heartbeat.phase):
            return
        now = time.monotonic()
        reason = self.unsaved.encode("ascii", "replace").decode()
        reason = reason if len(reason) <= REASON_CHARS else f"...{reason[3 - REASON_CHARS :]}"
        first, second = (*(self._steps if self._loaded is None else ()), None, None)[:2]
        complete = replace(
            heartbeat, time=now, waited=self._waited, saves=self._saves, saves_failed=self._saves_failed,
            unsaved=reason, loaded=self._loaded, first=first, second=second,
        )  # fmt: skip
        os.pwrite(self._fd, encode(complete), 0)
        self._written, self._phase, self._last = now, heartbeat.phase, heartbeat
        self._report_compilations()

    def _report_compilations(self) -> None:
        """Report the phase `compile` while torch.compile works, because such a step may take minutes."""
        module = sys.modules.get("torch._dynamo.callback")
        if self._reports_compilations or module is None:
            return
        self._reports_compilations = True
        before: list[Heartbeat] = []
        module.callback_handler.register_start_callback(lambda *_: self._begin_compilation(before))
        module.callback_handler.register_end_callback(lambda *_: self._end_compilation(before))

    def _begin_compilation(self, before: list[Heartbeat]) -> None:
        before[:] = [self._last]
        self.write(replace(self._last, phase="compile"))

    def _end_compilation(self, before: list[Heartbeat]) -> None:
        if before and self._phase == "compile":
            self.write(before[0])

    def close(self) -> None:
        """Close the file; later writes do nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
