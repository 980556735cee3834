"""Decides which stalled ranks of all nodes count as a hang. The module does no I/O, and the present time is an
argument.

A rank that waits between two steps may wait for a rank that saves or evaluates alone. So while any rank of the run is
within the longer limit of such a phase, the time does not count against ranks between two steps. If a node's heartbeats
are lost, its ranks may be in such a phase, but for no longer than the phase's limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.protocol.messages import Stalled
from orchestrator.protocol.typed import converted


@dataclass(frozen=True)
class Silence:
    """A stalled rank: the report of its node, and the time on the leader's clock at which the rank became silent."""

    node: int
    since: float
    rank: int
    phase: str
    step: int
    seconds: float
    limit: float
    between_steps: bool
    full: bool


@dataclass
class Standstill:
    """The stalls of one attempt, as the nodes' agents report them."""

    stalls: dict[int, Silence] = field(default_factory=dict)  # by rank
    patience: dict[int, float] = field(default_factory=dict)  # node -> until when its ranks are within a longer limit
    # node whose heartbeats are lost -> until when its ranks may be within a longer limit
    unseen: dict[int, float] = field(default_factory=dict)
    waited: float = 0.0  # the last time at which a rank was within a longer limit
    counted: set[int] = field(default_factory=set)  # ranks whose stall counts as a hang

    def note(self, node: int, stall: Stalled, now: float) -> None:
        """Record that a rank of a node has stalled."""
        before = self.stalls.get(stall.rank)
        if before is not None and (before.step, before.phase) != (stall.step, stall.phase):
            self.counted.discard(stall.rank)
        self.stalls[stall.rank] = converted(stall, Silence, node=node, since=now - stall.seconds)

    def forget(self, rank: int) -> bool:
        """Forget the stall of a rank that has made progress or ended. Return whether the stall counted as a hang."""
        self.stalls.pop(rank, None)
        was_counted = rank in self.counted
        self.counted.discard(rank)
        return was_counted

    def be_patient(self, node: int, seconds: float, now: float) -> None:
        """Record that a rank of the node is in a phase with a longer limit, such as saving, for up to `seconds` from
        now. If `seconds` is 0, no rank of the node is in such a phase.
        """
        self._look(now)
        self.patience[node] = now + seconds

    def drop(self, node: int) -> None:
        """Stop considering the ranks of a lost node."""
        self.patience.pop(node, None)
        self.unseen.pop(node, None)

    def slept(self, seconds: float) -> None:
        """Exclude `seconds`, for which the leader's process was paused, from all ranks' silence."""
        self.stalls = {rank: replace(stall, since=stall.since + seconds) for rank, stall in self.stalls.items()}
        self.patience = {node: until + seconds for node, until in self.patience.items()}
        self.waited += seconds

    def hung(self, now: float) -> list[Silence]:
        """Return the stalls that count as a hang now."""
        self._look(now)
        return [stall for stall in self.stalls.values() if self._counts(stall, now)]

    def newly(self, hung: list[Silence], now: float) -> list[Silence]:
        """Return the hangs in `hung` that were not returned before, each with the time for which its rank has been
        silent.
        """
        new = [replace(stall, seconds=now - stall.since) for stall in hung if stall.rank not in self.counted]
        self.counted.update(stall.rank for stall in new)
        return new

    def full(self) -> list[Silence]:
        """Return the stalls that have exceeded their full limit. When a hang is detected, one of these ranks is
        blamed.
        """
        return [stall for stall in self.stalls.values() if stall.full]

    def _look(self, now: float) -> None:
        if any(now < until for until in self.patience.values()):
            self.waited = now

    def _counts(self, stall: Silence, now: float) -> bool:
        if not stall.full:
            return False
        silent = now - max(stall.since, self.waited)
        return not stall.between_steps or silent >= stall.limit + max(self.unseen.values(), default=0.0)
