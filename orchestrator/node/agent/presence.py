"""Tracks the nodes of a gang: when each was heard last, which are lost and why, and pauses of this process. Pure."""

from __future__ import annotations

from typing import Callable

from orchestrator.outcome import gang

HEARTBEAT_SECONDS = 2.0


class Presence:
    """The nodes of a gang, as node 0 hears them. The clock (seconds, monotonic) is an argument."""

    def __init__(self, started: float, link_timeout: float) -> None:
        self.link_timeout, self.ticked = link_timeout, started
        self.seen: dict[int, float] = {}
        self.lost: dict[int, str] = {}  # and why
        self.deserters: dict[int, float] = {}  # lost nodes that left because this process did not run for so long
        self.slept, self.woke = 0.0, 0.0  # the last long pause of this process, and its end

    def pause(self, now: float) -> float:
        """Return for how many seconds this process did not run since the last call; 0 if it ran.

        A process that is stopped, or whose machine is suspended, misses messages. So nobody's silence counts in a
        pause. A short pause right after a long one does not hide the long one, which is why other nodes left.
        """
        late, self.ticked = now - self.ticked, now
        if late <= HEARTBEAT_SECONDS:
            return 0.0
        if late >= self.slept or now - self.woke > self.link_timeout:
            self.slept, self.woke = late, now
        self.seen = {node: min(now, when + late) for node, when in self.seen.items()}
        return late

    def lose(self, node: int, reason: str, now: float) -> float | None:
        """Count out a node. Return the pause of this process that made the node leave, or None."""
        self.lost[node] = reason
        if self.slept <= self.link_timeout or now - self.woke > self.link_timeout:
            return None
        self.deserters[node] = self.slept
        return round(self.slept, 1)

    def silent(self, now: float) -> list[tuple[int, str]]:
        """Return the nodes that are to be counted out for their silence, with the reason."""
        late = [(node, now - when) for node, when in self.seen.items() if now - when > self.link_timeout]
        return [(node, f"no heartbeat for {seconds:.0f} s") for node, seconds in late if node not in self.lost]

    def is_settled(self, now: float) -> bool:
        """Tell whether every node that is not lost was heard lately.

        A failing switch disconnects several nodes. If others are silent too, they may be lost in a moment, and are then
        named with the first.
        """
        known = now - self.link_timeout / 2
        return all(when >= known or node in self.lost for node, when in self.seen.items())

    def who_was_lost(self, names: Callable[[list[int]], str]) -> str:
        """Return which nodes were lost and why, in words."""
        return gang.who_was_lost(self.lost, self.deserters, names)
