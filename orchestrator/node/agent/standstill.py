"""Decides which stalls of all nodes' ranks count as a hang. Pure; the clock is an argument.

A rank that waits between two steps may wait for another rank that saves or evaluates alone. So the time in which any
rank of the run is inside the limit of a longer phase does not count against a rank between two steps. If a node's
heartbeats are lost, its ranks may be inside such a phase, but not for longer than the limit of that phase.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass
class Standstill:
    """The stalls of one attempt, as the nodes' agents report them."""

    stalls: dict[int, Message] = field(default_factory=dict)  # by rank; `since` is the leader's time
    patience: dict[int, float] = field(default_factory=dict)  # by node, when its ranks' longer limits end
    unseen: dict[int, float] = field(default_factory=dict)  # by node whose heartbeats are lost, the longest limit
    waited: float = 0.0  # the last time at which a rank was inside a longer limit
    counted: set[int] = field(default_factory=set)  # ranks whose stall counts as a hang

    def note(self, node: int, message: Message, now: float) -> None:
        """Note a stalled rank."""
        rank = message["rank"]
        before = self.stalls.get(rank, message)
        if (before["step"], before["phase"]) != (message["step"], message["phase"]):
            self.counted.discard(rank)
        self.stalls[rank] = {**message, "node": node, "since": now - message["seconds"]}

    def forget(self, rank: int) -> bool:
        """Forget the stall of a rank that has moved on or ended; return whether the stall counted as a hang."""
        self.stalls.pop(rank, None)
        was_counted = rank in self.counted
        self.counted.discard(rank)
        return was_counted

    def be_patient(self, node: int, seconds: float, now: float) -> None:
        """Note for how many seconds from now a node's ranks are inside longer limits; 0 if no rank is."""
        self._look(now)
        self.patience[node] = now + seconds

    def drop(self, node: int) -> None:
        """Wait no longer for the ranks of a node that is lost."""
        self.patience.pop(node, None)
        self.unseen.pop(node, None)

    def slept(self, seconds: float) -> None:
        """Shift all times by a pause in which nobody watched the ranks."""
        for stall in self.stalls.values():
            stall["since"] += seconds
        self.patience = {node: until + seconds for node, until in self.patience.items()}
        self.waited += seconds

    def hung(self, now: float) -> list[Message]:
        """Return the stalls that count as a hang now, with their silence until now."""
        self._look(now)
        return [
            {**stall, "seconds": now - stall["since"]} for stall in self.stalls.values() if self._counts(stall, now)
        ]

    def newly(self, hung: list[Message]) -> list[Message]:
        """Return the hangs among these that were not returned before."""
        new = [stall for stall in hung if stall["rank"] not in self.counted]
        self.counted.update(stall["rank"] for stall in new)
        return new

    def full(self) -> list[Message]:
        """Return the stalls whose full limit has passed: the candidates for the blame once any of them counts."""
        return [stall for stall in self.stalls.values() if stall["full"]]

    def _look(self, now: float) -> None:
        if any(now < until for until in self.patience.values()):
            self.waited = now

    def _counts(self, stall: Message, now: float) -> bool:
        if not stall["full"]:
            return False
        silent = now - max(stall["since"], self.waited)
        return not stall.get("between_steps") or silent >= stall["limit"] + max(self.unseen.values(), default=0.0)
