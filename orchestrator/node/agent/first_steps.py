"""Detects whether rank 0's program has loaded the checkpoint from which it was to resume.

A program that uses orch's training library reports the loaded step. For other programs, rank 0's process notes that it
has read the checkpoint. Otherwise, this is detected from the first two steps in the heartbeats or metrics, or from the
step of the first saved checkpoint. A program that begins at step 1
has loaded no checkpoint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from orchestrator.node.agent.stall_detector import read_heartbeat
from orchestrator.protocol.checkpoints.of_run import Places
from orchestrator.protocol.checkpoints.search import Saved
from orchestrator.protocol.json_text import objects_in
from orchestrator.protocol.reading import read_part
from orchestrator.protocol.task import NodeTask

MOST_STEP = 10_000_000  # a greater number in the name of a file may be a date or a time
MOST_METRICS = 1 << 16  # bytes of an attempt's metrics that are searched for two steps

_NUMBER = re.compile(r"\d+")

Message = dict[str, Any]


class FirstSteps:
    """The first steps of an attempt, read from rank 0's heartbeat and from new lines of its metrics file. `marker` is
    the file by which rank 0's process notes that it has read the checkpoint.
    """

    def __init__(self, heartbeat: str, metrics: str, marker: str) -> None:
        self.heartbeat, self.metrics, self.marker = heartbeat, metrics, marker
        self.is_known = False
        try:
            self.offset = os.stat(metrics).st_size
        except OSError:
            self.offset = 0

    def look(self) -> Message | None:
        """Return {"loaded": STEP}, {"read": True} or {"steps": [FIRST, SECOND]} in the first call in which this is
        known. Return None in all other calls.
        """
        if self.is_known:
            return None
        beat = read_heartbeat(self.heartbeat) or {}
        if type(beat.get("loaded")) is int:
            found: Message | None = {"loaded": beat["loaded"]}
        elif os.path.lexists(self.marker):
            found = {"read": True}
        else:
            found = _two([beat.get("first"), beat.get("second")]) or _two(self._steps_of_metrics())
        self.is_known = found is not None
        return found

    def _steps_of_metrics(self) -> list[Any]:
        """Return the steps in the lines that this attempt has added to the metrics; empty if the file is missing or not
        a regular file.
        """
        try:
            lines = read_part(self.metrics, self.offset, MOST_METRICS, os.path.dirname(self.metrics)).split(b"\n")[:-1]
        except OSError:
            return []
        return [row.get("step") for row in objects_in(lines)]


def first_saved(task: NodeTask, offered: Saved, before: Mapping[str, Saved]) -> tuple[int, int] | None:
    """Return the step of the offered checkpoint, and the lowest step of the checkpoints that this attempt has written.
    Return None if the attempt has written none.

    before: the checkpoints that existed when the attempt began. Only checkpoints in the format of the offered
    checkpoint count. If the format has no steps, only files whose names differ in nothing but their number count.
    """
    known = {each.path: each.time for each in before.values()}
    found = [each for each in Places.of(task).own().values() if known.get(each.path) != each.time]
    steps = [each.step for each in found if _is_alike(each, offered)]
    return (offered.step, min(steps)) if steps else None


def _is_alike(saved: Saved, offered: Saved) -> bool:
    """Return whether the steps of two checkpoints can be compared. A number in the name of an ordinary file is a step
    if it is the name's only number and no date.
    """
    if saved.format is not offered.format:
        return False
    if saved.is_counted and offered.is_counted:
        return True
    names = [_NUMBER.split(each.path) for each in (saved, offered)]
    numbers = [_NUMBER.findall(os.path.basename(each.path)) for each in (saved, offered)]
    is_step = all(len(each) == 1 and int(each[0]) < MOST_STEP for each in numbers)
    return is_step and os.path.dirname(saved.path) == os.path.dirname(offered.path) and names[0][-2:] == names[1][-2:]


def _two(steps: list[Any]) -> Message | None:
    """Return the first step in the list and the first higher step after it; None if no higher step follows."""
    known = [step for step in steps if type(step) is int and step >= 0]
    later = next((step for step in known if step > known[0]), None)
    return None if later is None else {"steps": [known[0], later]}
