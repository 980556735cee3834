"""Which rank stands still: a pure look at the heartbeats, by the limits of each phase.

In `train`, a rank that has made steps may be silent for max(limit, 10 median steps); its first step, evaluation, saving
and whatever comes before training have the other, long limit. Only this node's own monotonic clock counts.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.node.agent.missing_rank import Missing
from orchestrator.protocol.reading import info_of, read_json

STEPS_REMEMBERED = 50
MOST_HEARTBEAT = 1 << 16


@dataclass(frozen=True)
class Stall:
    """A rank that has been silent for `seconds`, of `limit`, since its heartbeat at `step` in `phase`."""

    rank: int
    phase: str
    step: int
    seconds: float
    limit: float

    @property
    def is_full(self) -> bool:
        """Return whether the whole limit has passed, not only half of it."""
        return self.seconds >= self.limit


@dataclass
class RankHeartbeats:
    """What is known of one rank's heartbeats."""

    step: int = -1
    phase: str = ""
    heartbeat_time: float = 0.0
    changed: float = 0.0
    has_stepped: bool = False
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_REMEMBERED))

    def note(self, heartbeat: dict[str, Any], now: float) -> None:
        """Note a heartbeat that has been read at `now`."""
        step, phase = int(heartbeat.get("step") or 0), str(heartbeat.get("phase"))
        moment = float(heartbeat.get("time") or 0.0)
        if (step, phase) == (self.step, self.phase):
            return
        # These are only in a heartbeat that follows a step; all steps may have come between two looks.
        stepped = phase == "train" and any(heartbeat.get(name) is not None for name in ("rate", "loss", "eta"))
        self.has_stepped = self.has_stepped or stepped or (phase == self.phase == "train" and step > self.step >= 0)
        if phase == self.phase == "train" and step > self.step >= 0 and moment > self.heartbeat_time:
            self.step_seconds.append((moment - self.heartbeat_time) / (step - self.step))
        self.step, self.phase, self.heartbeat_time, self.changed = step, phase, moment, now

    def limit(self, train: float, medians: float, other: float) -> float:
        """Return how long this rank may be silent now, in seconds."""
        if self.phase != "train" or not self.has_stepped:
            return other
        return max(train, medians * _median(self.step_seconds))


@dataclass
class StallDetector:
    """The heartbeats of one node's ranks within an attempt."""

    train: float
    medians: float
    other: float
    ranks: dict[int, RankHeartbeats] = field(default_factory=dict)

    def forgive(self, seconds: float) -> None:
        """Take off from every rank's silence the seconds in which nobody was watching."""
        for known in self.ranks.values():
            known.changed += seconds

    def stalls(self, heartbeats: dict[int, dict[str, Any] | None], now: float) -> list[Stall]:
        """Return the ranks that have been silent for at least half of their limit, never one without a heartbeat."""
        stalls = []
        for rank, heartbeat in heartbeats.items():
            if heartbeat is not None:
                self.ranks.setdefault(rank, RankHeartbeats(changed=now)).note(heartbeat, now)
            known = self.ranks.get(rank)
            if known is None or known.phase == "done":
                continue
            limit, silent = known.limit(self.train, self.medians, self.other), now - known.changed
            if silent >= limit / 2:
                stalls.append(Stall(rank, known.phase, known.step, silent, limit))
        return stalls


def culprit_of_hang(
    stalls: list[dict[str, Any]], stacks: dict[int, dict[str, Any]], missing: Missing | None = None
) -> dict[str, Any]:
    """Return the stalled rank that the others wait for.

    One that is stopped, else the one that is `missing` from a collective, else one outside any collective, else one
    that stands where fewest stand (of one that is late with its answer nothing is known), else the one with the fewest
    steps. `stacks` tells of each rank its process state (T is stopped), whether its main thread waits in a collective,
    and the line of the program that it has come to.
    """
    places = Counter(seen.get("where") for seen in stacks.values())

    def order(stall: dict[str, Any]) -> tuple[int, int, int, int]:
        seen = stacks.get(stall["rank"], {})
        stopped, outside = seen.get("state") in ("T", "t"), seen.get("in_collective") is False
        is_missing = missing is not None and missing.rank == stall["rank"]
        return (
            0 if stopped else 1 if is_missing else 2 if outside else 3,
            len(stacks) if seen.get("late") else places[seen.get("where")],
            stall["step"],
            stall["rank"],
        )

    return min(stalls, key=order)


def _median(values: Iterable[float]) -> float:
    """Return the median, 0 of none; the module `statistics` would cost every agent milliseconds at its start."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2 if ordered else 0.0


DEFAULT_LIMITS = {"train": 60.0, "medians": 10.0, "other": 1800.0}


class HeartbeatReader:
    """The heartbeats of one attempt's ranks on this node."""

    def __init__(self, hang: Mapping[str, Any]) -> None:
        limits = {name: float(hang.get(name, value)) for name, value in DEFAULT_LIMITS.items()}
        self.is_off = hang.get("action", "off") == "off"
        self.detector = StallDetector(limits["train"], limits["medians"], limits["other"])
        self.told: set[tuple[int, int, str, bool]] = set()

    def new_stalls(self, folder: str, ranks: Iterable[int], now: float) -> list[Stall]:
        """Return the stalls that have not been told yet; `folder` is the attempt's: without it nothing can be told."""
        if self.is_off or not os.path.isdir(folder):
            return []
        stalls = self.detector.stalls(
            {rank: read_heartbeat(f"{folder}/beat_{rank}") or output(folder, rank) for rank in ranks}, now
        )
        new = [stall for stall in stalls if (stall.rank, stall.step, stall.phase, stall.is_full) not in self.told]
        self.told.update((stall.rank, stall.step, stall.phase, stall.is_full) for stall in new)
        return new


def output(folder: str, rank: int) -> dict[str, Any] | None:
    """Return what stands in for the heartbeat of a program that has none: how much it has said."""
    try:
        size = info_of(f"{folder}/rank_{rank}.log", folder.rsplit("/", 3)[0]).st_size
        return {"step": size, "phase": "output", "time": 0.0}
    except OSError:
        return None


def read_heartbeat(path: str) -> dict[str, Any] | None:
    """Return the last heartbeat of a rank; None when it has none, or it is being written this instant."""
    try:
        # RUN/nodes/0/attempt_0/beat_0
        heartbeat = read_json(path, MOST_HEARTBEAT, path.rsplit("/", 4)[0])
    except (OSError, ValueError):
        return None
    return heartbeat if isinstance(heartbeat, dict) else None
