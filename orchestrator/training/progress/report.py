"""Writes the reports of global rank 0: progress lines, metrics.jsonl and the result file."""

import json
import math
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from orchestrator.protocol import quantities
from orchestrator.protocol.files import write_atomic

LINE_SECONDS = 3.0
RATE_POINTS = 50
_OWN = frozenset({"kind", "step", "attempt", "time"})  # fields that orch itself writes into metrics.jsonl


class Meter:
    """The speed of training over the last steps."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque(maxlen=RATE_POINTS)
        self._samples = 0
        self.reset()

    def reset(self) -> None:
        """Forget earlier steps, so that the pause for an evaluation or a checkpoint does not lower the rate."""
        self._points.clear()
        self._points.append((time.monotonic(), self._samples))

    def count(self, samples: int) -> None:
        """Count a finished step of `samples` samples over all ranks."""
        self._samples += samples
        self._points.append((time.monotonic(), self._samples))

    @property
    def rate(self) -> float | None:
        """Return the number of samples per second over all ranks, or None before the first step."""
        (start, first), (end, last) = self._points[0], self._points[-1]
        return (last - first) / (end - start) if end > start else None


class Reporter:
    """Writes reports for people and programs on global rank 0, and nothing on other ranks."""

    def __init__(self, metrics: Path | None, result: Path | None, *, speaks: bool, attempt: int) -> None:
        self.speaks = speaks
        self.attempt = attempt
        self._result = result
        self._printed = -LINE_SECONDS
        self._file = None
        if speaks and metrics:
            metrics.parent.mkdir(parents=True, exist_ok=True)
            self._file = metrics.open("a", buffering=1)

    def say(self, text: str) -> None:
        """Print a line on rank 0. It is flushed, because a launcher's stdout is a buffered file or pipe."""
        if self.speaks:
            print(text, flush=True)

    def warn(self, text: str) -> None:
        """Print a warning to stderr on rank 0."""
        if self.speaks:
            print(f"WARNING: {text}", file=sys.stderr, flush=True)

    def metric(self, kind: str, **values: Any) -> None:
        """Append a line to metrics.jsonl: its kind (train, eval, save, ...), the attempt, the time, and `values`."""
        if self._file:
            line = _finite({"kind": kind, **values, "attempt": self.attempt, "time": round(time.time(), 3)})
            self._file.write(json.dumps(line) + "\n")

    def progress(
        self,
        *,
        step: int,
        total: int,
        epoch: int,
        loss: float,
        rate: float | None,
        eta: float | None,
        more: Sequence[str] = (),
    ) -> None:
        """Print a progress line if the last line is LINE_SECONDS old, or if this is the last step."""
        now = time.monotonic()
        if now - self._printed < LINE_SECONDS and step < total:
            return
        self._printed = now
        parts = [f"step {step}/{total}", f"epoch {epoch}", f"loss {loss:.4f}"]
        parts += [f"{rate:,.0f} samples/s"] if rate else []
        parts += more
        parts += [f"ETA {quantities.duration(eta)}"] if eta is not None else []
        self.say("  ".join(parts))

    def result(self, values: Mapping[str, Any]) -> None:
        """Write the result file atomically."""
        if not (self.speaks and self._result):
            return
        write_atomic(self._result, (json.dumps(_finite(values), indent=1) + "\n").encode())

    def close(self) -> None:
        """Close metrics.jsonl."""
        if self._file:
            self._file.close()


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with NaN and infinities replaced by None, because JSON has neither."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
    }


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return those of a framework's metrics that are single numbers. A metric is left out if orch uses its name for a
    field of its own.
    """
    plain = {
        name: value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        for name, value in values.items()
    }
    return {name: value for name, value in plain.items() if isinstance(value, int | float) and name not in _OWN}


def measure(name: str, value: float) -> str:
    """Format a metric as text. An accuracy is a percentage, and any other metric is a number."""
    return f"accuracy {100 * value:.2f} %" if name == "accuracy" else f"{name} {value:.4f}"
