"""How far a run has come, as events describe it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Progress(NamedTuple):
    """How far a run has come: the newest checkpoint's step or, without one, the heartbeats' step and the last write.

    A later state compares as greater. Any checkpoint's step counts for more than the signs of a run without
    checkpoints.
    """

    step: int = -1
    beat: int = -1
    saved: float = 0.0

    @property
    def known_step(self) -> int | None:
        """Return the checkpoint's step, or None if there is none."""
        return None if self.step < 0 else self.step

    def to_event(self) -> dict[str, Any]:
        """Return the fields that describe the progress in an event."""
        signs = {} if self.step >= 0 else {"beat": self.beat if self.beat >= 0 else None, "saved": self.saved or None}
        return {"step": self.known_step, **{name: value for name, value in signs.items() if value is not None}}


def progress_of(event: Mapping[str, Any]) -> Progress:
    """Return the progress that an event describes."""
    step, beat = (each if type(each := event.get(name)) is int else -1 for name in ("step", "beat"))
    saved = event.get("saved")
    return Progress(step, beat, saved if isinstance(saved, float) else 0.0)
