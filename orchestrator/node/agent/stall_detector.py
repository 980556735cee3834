"""Detects stalled ranks of one node from their heartbeats and the limits of each phase. The module does no I/O.

In phase `train`, a rank that has completed steps may be silent for its limit or for 10 times its median step time,
whichever is longer. The first step, evaluation, saving and everything before training have a second, longer limit. Only
this node's own monotonic clock is used. The leader decides which stall counts as a hang (standstill.py).
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.node.agent.missing_rank import Missing
from orchestrator.node.agent.standstill import Silence
from orchestrator.protocol.messages import Moved, OfAttempt, Patience, Stalled
from orchestrator.protocol.rank_reports import RankStack
from orchestrator.protocol.reading import info_of, read_object

STEPS_REMEMBERED = 50
MOST_HEARTBEAT = 1 << 16


@dataclass
class RankHeartbeats:
    """The facts about one rank that its heartbeats have shown."""

    step: int = -1
    phase: str = ""
    heartbeat_time: float = 0.0
    changed: float = 0.0
    has_stepped: bool = False
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_REMEMBERED))

    def note(self, heartbeat: dict[str, Any], now: float) -> None:
        """Store a heartbeat that was read at time `now`."""
        step, phase = int(heartbeat.get("step") or 0), str(heartbeat.get("phase"))
        moment = float(heartbeat.get("time") or 0.0)
        if (step, phase) == (self.step, self.phase):
            return
        # Only a heartbeat after a step has these values. The rank may have made all its steps between two reads.
        stepped = phase == "train" and any(heartbeat.get(name) is not None for name in ("rate", "loss", "eta"))
        self.has_stepped = self.has_stepped or stepped or (phase == self.phase == "train" and step > self.step >= 0)
        if phase == self.phase == "train" and step > self.step >= 0 and moment > self.heartbeat_time:
            self.step_seconds.append((moment - self.heartbeat_time) / (step - self.step))
        self.step, self.phase, self.heartbeat_time, self.changed = step, phase, moment, now

    @property
    def is_between_steps(self) -> bool:
        """Return whether the short limit applies: the rank is in phase `train` and has completed steps."""
        return self.phase == "train" and self.has_stepped

    def limit(self, train: float, medians: float, other: float) -> float:
        """Return the number of seconds for which this rank may be silent in its present phase."""
        return max(train, medians * _median(self.step_seconds)) if self.is_between_steps else other


@dataclass
class StallDetector:
    """The heartbeats of one node's ranks within an attempt."""

    train: float
    medians: float
    other: float
    attempt: int = 0
    ranks: dict[int, RankHeartbeats] = field(default_factory=dict)

    def forgive(self, seconds: float) -> None:
        """Subtract `seconds`, for which this agent was paused, from every rank's silence."""
        for known in self.ranks.values():
            known.changed += seconds

    def stalls(self, heartbeats: dict[int, dict[str, Any] | None], now: float) -> list[Stalled]:
        """Return a report on each rank that has been silent for at least half of its limit. Ranks without any heartbeat
        are left out.
        """
        stalls = []
        for rank, heartbeat in heartbeats.items():
            if heartbeat is not None:
                self.ranks.setdefault(rank, RankHeartbeats(changed=now)).note(heartbeat, now)
            known = self.ranks.get(rank)
            if known is None or known.phase == "done":
                continue
            limit, silent = known.limit(self.train, self.medians, self.other), now - known.changed
            if silent >= limit / 2:
                facts = (rank, known.phase, known.step, silent, limit, known.is_between_steps)
                stalls.append(Stalled(self.attempt, *facts, full=silent >= limit))
        return stalls

    def patient_until(self, ranks: Iterable[int], now: float) -> float:
        """Return the time until which these ranks may be silent, because one of them is in a phase that takes longer,
        such as evaluation or saving. Return 0 if no rank is in such a phase.

        Only a phase that the program has reported has a longer limit. A program without heartbeats reports no phase,
        and its output is watched instead.
        """
        watched = [self.ranks[rank] for rank in ranks if rank in self.ranks]
        inside = [each for each in watched if not each.is_between_steps and each.phase not in ("", "output", "done")]
        return max((each.changed + self.other for each in inside if now < each.changed + self.other), default=0.0)


def culprit_of_hang(
    stalls: Sequence[Silence], stacks: Mapping[int, RankStack], missing: Missing | None = None
) -> Silence:
    """Return the stalled rank for which the others wait.

    The candidates are the ranks of the first group in this list that is not empty:

    1. stopped ranks (SIGSTOP)
    2. the rank that is `missing` from a collective
    3. ranks outside any collective
    4. all other ranks

    Several candidates are compared by these criteria, in this order:

    1. A rank that has exceeded a longer limit is chosen first, because the others may have waited for it.
    2. The rank with the fewest ranks at the same line is chosen. A rank whose stack arrived late comes last.
    3. The rank with the fewest completed steps is chosen.

    `stacks` maps each rank to its process state (T means stopped), to whether its main thread waits in a collective,
    and to the line of the program at which it is.
    """
    places = Counter(seen.where for seen in stacks.values())

    def order(stall: Silence) -> tuple[int, bool, int, int, int]:
        seen = stacks.get(stall.rank, RankStack())
        stopped, outside = seen.state in ("T", "t"), seen.in_collective is False
        is_missing = missing is not None and missing.rank == stall.rank
        return (
            0 if stopped else 1 if is_missing else 2 if outside else 3,
            stall.between_steps,
            len(stacks) if seen.late else places[seen.where],
            stall.step,
            stall.rank,
        )

    return min(stalls, key=order)


def _median(values: Iterable[float]) -> float:
    """Return the median; 0 if there are no values. Importing the module `statistics` would slow down each agent's
    start.
    """
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2 if ordered else 0.0


DEFAULT_LIMITS = {"train": 60.0, "medians": 10.0, "other": 1800.0}


class HeartbeatReader:
    """Reads the heartbeats of one attempt's ranks on this node."""

    def __init__(self, hang: Mapping[str, Any], attempt: int = 0) -> None:
        limits = {name: float(hang.get(name, value)) for name, value in DEFAULT_LIMITS.items()}
        self.is_off = hang.get("action", "off") == "off"
        self.detector = StallDetector(limits["train"], limits["medians"], limits["other"], attempt)
        self.reported: dict[int, Stalled] = {}  # the last stall of each rank that was returned
        self.patient_until = 0.0

    def news(self, folder: str, ranks: Iterable[int], now: float) -> list[OfAttempt]:
        """Return messages for the leader about stalls that have begun or ended since the last call.

        `folder` is the attempt's folder. If the folder is missing, the heartbeats are unknown, and no message is
        returned.
        """
        ranks, attempt = list(ranks), self.detector.attempt
        found: list[OfAttempt] = [*self.new_stalls(folder, ranks, now)]
        found += [Moved(attempt, rank) for rank in self._moved(ranks)]
        until = self.detector.patient_until(ranks, now)
        if until != self.patient_until:
            self.patient_until = until
            found.append(Patience(attempt, max(0.0, until - now)))
        return found

    def new_stalls(self, folder: str, ranks: Iterable[int], now: float) -> list[Stalled]:
        """Return the stalls that have not been returned before."""
        if self.is_off or not os.path.isdir(folder):
            return []
        stalls = self.detector.stalls(
            {rank: read_heartbeat(f"{folder}/beat_{rank}") or output(folder, rank) for rank in ranks}, now
        )
        new = [stall for stall in stalls if _key(stall) != _key(self.reported.get(stall.rank))]
        self.reported.update((stall.rank, stall) for stall in new)
        return new

    def _moved(self, ranks: Iterable[int]) -> list[int]:
        """Return the ranks whose stall was returned before, and that have made progress or ended since."""
        watched = {rank: self.detector.ranks[rank] for rank in ranks if rank in self.detector.ranks}
        moved = [
            rank
            for rank, stall in self.reported.items()
            if rank not in watched or (watched[rank].step, watched[rank].phase) != (stall.step, stall.phase)
        ]
        for rank in moved:
            del self.reported[rank]
        return moved


def _key(stall: Stalled | None) -> tuple[int, str, bool] | None:
    return None if stall is None else (stall.step, stall.phase, stall.full)


def output(folder: str, rank: int) -> dict[str, Any] | None:
    """Return a substitute heartbeat for a program that sends none. The substitute holds the size of the program's
    output so far.
    """
    try:
        size = info_of(f"{folder}/rank_{rank}.log", folder.rsplit("/", 3)[0]).st_size
        return {"step": size, "phase": "output", "time": 0.0}
    except OSError:
        return None


def read_heartbeat(path: str) -> dict[str, Any] | None:
    """Return the last heartbeat of a rank; None if there is none, or if the file is incomplete because a write is
    under way.
    """
    return read_object(path, MOST_HEARTBEAT, path.rsplit("/", 4)[0])  # RUN/nodes/0/attempt_0/beat_0
