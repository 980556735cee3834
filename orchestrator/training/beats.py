"""Heartbeats: one padded JSON line of 512 bytes that a rank overwrites in place, so that a reader never sees two."""

import json
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

BEAT_BYTES = 512
MIN_SECONDS = 0.1
PHASES = ("start", "train", "eval", "save", "done")


@dataclass(frozen=True)
class Beat:
    """Where a rank is: `time` is this machine's monotonic clock, `rate` in samples a second, `eta` in seconds."""

    step: int = 0
    total: int | None = None
    epoch: int = 0
    phase: str = "start"
    time: float = 0.0
    loss: float | None = None
    rate: float | None = None
    eta: float | None = None


def encode(beat: Beat) -> bytes:
    """Return `beat` as one JSON line padded with spaces to exactly 512 bytes, the newline last."""
    values = asdict(beat)
    for key, value in values.items():
        if isinstance(value, float):
            # JSON has no NaN, and a diverged loss must not cost the heartbeat.
            values[key] = round(value, 6) if math.isfinite(value) else None
    return json.dumps(values).encode().ljust(BEAT_BYTES - 1) + b"\n"


class BeatFile:
    """A rank's heartbeat file, opened once; without a path every write is a no-op."""

    def __init__(self, path: Path | None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644) if path else None
        self._written = -math.inf
        self._phase = ""

    def due(self, phase: str = "train") -> bool:
        """Return whether a beat would be written now: on a new phase at once, else ten times a second at most."""
        if self._fd is None:
            return False
        return phase != self._phase or time.monotonic() - self._written >= MIN_SECONDS

    def write(self, beat: Beat) -> None:
        """Write `beat`, stamped with the time, if one is due."""
        if self._fd is None or not self.due(beat.phase):
            return
        now = time.monotonic()
        os.pwrite(self._fd, encode(Beat(**{**asdict(beat), "time": now})), 0)
        self._written, self._phase = now, beat.phase

    def close(self) -> None:
        """Close the file; later writes are no-ops."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
