"""Measures how long a node has been idle according to the job's `idle` settings, from the node's samples. The module
does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.protocol.samples import Sample

LONGEST_WINDOW, WINDOWS = 60.0, 10


@dataclass
class IdleWatch:
    """Counts the windows of time in which a node is idle. A window lasts a minute or a tenth of `after`, and is idle if
    its mean use is below the job's limit.

    With windows, one busy moment does not end an idle hour, and a busy hour does not hide the idle hour that follows.
    """

    gpu: float | None = None  # the limit in percent for the mean of the node's GPUs
    cpu: float | None = None  # the limit in percent of a core per rank, for a node without GPU samples
    after: float = 1800.0
    seconds: float = 0.0  # the time for which the node has been idle
    what: str = ""  # a text about the use in the last full window
    used: float = 0.0
    window: float = 0.0

    @staticmethod
    def of(asked: Mapping[str, Any]) -> IdleWatch | None:
        """Return the watch for the job's `idle` settings; None if the job has none."""
        if not asked:
            return None
        return IdleWatch(asked.get("gpu"), asked.get("cpu"), float(asked.get("after", 1800.0)))

    def add(self, sample: Sample) -> bool:
        """Count a sample. Return True if the node has been idle for as long as the job allows."""
        found = use_of(sample, gpu=self.gpu, cpu=self.cpu)
        if found is None:
            self.reset()
            return False
        name, use, limit = found
        self.used, self.window = self.used + use * sample.seconds, self.window + sample.seconds
        if self.window >= min(LONGEST_WINDOW, self.after / WINDOWS):
            mean = self.used / self.window
            self.seconds = self.seconds + self.window if mean < limit else 0.0
            self.what, self.used, self.window = f"{name} {mean:.0f} %", 0.0, 0.0
        return self.seconds > 0 and self.seconds >= self.after

    def reset(self) -> None:
        """Reset the counts, because the ranks have changed or ended."""
        self.seconds = self.used = self.window = 0.0


def use_of(sample: Sample, *, gpu: float | None, cpu: float | None) -> tuple[str, float, float] | None:
    """Return (device, percentage in use, limit), from which follows whether a sample counts as idle. Return None if the
    sample does not show whether the node is idle.
    """
    known = [each.use for each in sample.gpus if each.use is not None]
    if not sample.ranks:
        return None
    if known and gpu is not None:
        return "GPU", sum(known) / len(known), gpu
    if not known and cpu is not None:
        return "CPU", 100 * sum(rank.cpu for rank in sample.ranks) / len(sample.ranks), cpu
    return None
