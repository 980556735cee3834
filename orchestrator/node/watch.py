"""Which rank stands still: a pure look at the beats, by the limits of each phase.

In `train`, a rank that has made steps may be silent for max(limit, 10 median steps); its first step, evaluation, saving
and whatever comes before training have the other, long limit. Only this node's own monotonic clock counts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

STEPS_REMEMBERED = 50


@dataclass(frozen=True)
class Stall:
    """A rank that has been silent for `seconds`, of `limit`, since its beat at `step` in `phase`."""

    rank: int
    phase: str
    step: int
    seconds: float
    limit: float

    @property
    def is_full(self) -> bool:
        """Has the whole limit passed, not only half of it?"""
        return self.seconds >= self.limit


@dataclass
class RankBeats:
    """What is known of one rank's beats."""

    step: int = -1
    phase: str = ""
    beat_time: float = 0.0
    changed: float = 0.0
    has_stepped: bool = False
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_REMEMBERED))

    def take(self, beat: dict[str, Any], now: float) -> None:
        """Note a beat that has been read at `now`."""
        step, phase, moment = int(beat.get("step") or 0), str(beat.get("phase")), float(beat.get("time") or 0.0)
        if (step, phase) == (self.step, self.phase):
            return
        # These are only in a beat that follows a step; all steps may have come between two looks.
        stepped = phase == "train" and any(beat.get(name) is not None for name in ("rate", "loss", "eta"))
        self.has_stepped = self.has_stepped or stepped or (phase == self.phase == "train" and step > self.step >= 0)
        if phase == self.phase == "train" and step > self.step >= 0 and moment > self.beat_time:
            self.step_seconds.append((moment - self.beat_time) / (step - self.step))
        self.step, self.phase, self.beat_time, self.changed = step, phase, moment, now

    def limit(self, train: float, medians: float, other: float) -> float:
        """How long this rank may be silent now, in seconds."""
        if self.phase != "train" or not self.has_stepped:
            return other
        return max(train, medians * _median(self.step_seconds))


@dataclass
class Watch:
    """The beats of one node's ranks within an attempt."""

    train: float
    medians: float
    other: float
    ranks: dict[int, RankBeats] = field(default_factory=dict)

    def look(self, beats: dict[int, dict[str, Any] | None], now: float) -> list[Stall]:
        """The ranks that have been silent for at least half of their limit; one without a beat is never among them."""
        stalls = []
        for rank, beat in beats.items():
            if beat is not None:
                self.ranks.setdefault(rank, RankBeats(changed=now)).take(beat, now)
            known = self.ranks.get(rank)
            if known is None or known.phase == "done":
                continue
            limit, silent = known.limit(self.train, self.medians, self.other), now - known.changed
            if silent >= limit / 2:
                stalls.append(Stall(rank, known.phase, known.step, silent, limit))
        return stalls


def culprit_of_hang(stalls: list[dict[str, Any]], stacks: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The stalled rank that the others wait for.

    One that is stopped, else one outside any collective, else one that stands where fewest stand, else the one
    with the fewest steps. `stacks` tells of each rank its process state (T is stopped), whether its main thread
    waits in a collective, and the line of the program that it has come to.
    """
    places = Counter(seen.get("where") for seen in stacks.values())

    def order(stall: dict[str, Any]) -> tuple[int, int, int, int]:
        seen = stacks.get(stall["rank"], {})
        stopped, outside = seen.get("state") in ("T", "t"), seen.get("in_collective") is False
        return (0 if stopped else 1 if outside else 2, places[seen.get("where")], stall["step"], stall["rank"])

    return min(stalls, key=order)


def _median(values: Iterable[float]) -> float:
    """0 of none; the module `statistics` would cost every agent milliseconds at its start."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2 if ordered else 0.0
