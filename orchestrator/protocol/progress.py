"""Compares the progress of a run at different times, from what its events report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Progress(NamedTuple):
    """The progress of a run: the step of its newest checkpoint. If no such step is known, it is the newest step in a
    heartbeat and the time of the last write to a file of the program.

    A greater value means more progress. A known step of a checkpoint compares as greater than any progress without such
    a step.
    """

    step: int = -1
    beat: int = -1
    saved: float = 0.0

    @staticmethod
    def of(step: int | None, beat: int | None = None, saved: float | None = None) -> Progress:
        """Build a Progress. Each argument is None if the value is unknown."""
        return Progress(-1 if step is None else step, -1 if beat is None else beat, saved or 0.0)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Progress:
        """Parse the progress from an event, whose fields `to_event` made."""
        step, beat = (each if type(each := data.get(name)) is int else None for name in ("step", "beat"))
        saved = data.get("saved")
        return Progress.of(step, beat, saved if isinstance(saved, float) else None)

    @property
    def known_step(self) -> int | None:
        """Return the step of the newest checkpoint, or None if the step is unknown."""
        return None if self.step < 0 else self.step

    def to_event(self) -> dict[str, Any]:
        """Return the fields that describe the progress in an event."""
        signs = {} if self.step >= 0 else {"beat": self.beat if self.beat >= 0 else None, "saved": self.saved or None}
        return {"step": self.known_step, **{name: value for name, value in signs.items() if value is not None}}
