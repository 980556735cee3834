"""Tracks the nodes of a gang: their last heartbeats, which nodes were lost and why, and the times in which this
process did not run (it was suspended). The module does no I/O.
"""

from __future__ import annotations

from typing import Callable

from orchestrator.outcome import gang

HEARTBEAT_SECONDS = 2.0


class Presence:
    """The nodes of a gang, as node 0 sees them. The present time (seconds, monotonic) is an argument of the methods."""

    def __init__(self, started: float, link_timeout: float) -> None:
        self.link_timeout, self.ticked = link_timeout, started
        self.seen: dict[int, float] = {}
        self.lost: dict[int, str] = {}  # node -> reason
        # nodes that left during a pause of this process -> seconds of the pause
        self.deserters: dict[int, float] = {}
        self.slept, self.woke = 0.0, 0.0  # the last long pause of this process, and its end

    def pause(self, now: float) -> float:
        """Return for how many seconds this process was stopped or suspended since the last call; 0 if it was not.

        A process that is stopped, or whose machine is suspended, receives no messages. So the nodes' silence during a
        pause does not count. A long pause is remembered even if a short pause follows directly, because other nodes
        left during the long pause.
        """
        late, self.ticked = now - self.ticked, now
        if late <= HEARTBEAT_SECONDS:
            return 0.0
        if late >= self.slept or now - self.woke > self.link_timeout:
            self.slept, self.woke = late, now
        self.seen = {node: min(now, when + late) for node, when in self.seen.items()}
        return late

    def lose(self, node: int, reason: str, now: float) -> float | None:
        """Mark a node as lost. If the node left because this process was paused, return the length of that pause in
        seconds. Otherwise return None.
        """
        self.lost[node] = reason
        if self.slept <= self.link_timeout or now - self.woke > self.link_timeout:
            return None
        self.deserters[node] = self.slept
        return round(self.slept, 1)

    def silent(self, now: float) -> list[tuple[int, str]]:
        """Return (node, reason) for each node that has been silent for longer than the limit and is not marked as lost
        yet.
        """
        late = [(node, now - when) for node, when in self.seen.items() if now - when > self.link_timeout]
        return [(node, f"no heartbeat for {seconds:.0f} s") for node, seconds in late if node not in self.lost]

    def is_settled(self, now: float) -> bool:
        """Return whether every node that is not lost has sent a message recently.

        A failing switch disconnects several nodes at about the same time. If a node is silent when another is lost, it
        may be lost soon too. The leader waits for this, and then reports all lost nodes together.
        """
        known = now - self.link_timeout / 2
        return all(when >= known or node in self.lost for node, when in self.seen.items())

    def who_was_lost(self, names: Callable[[list[int]], str]) -> str:
        """Return a text that lists which nodes were lost and why."""
        return gang.who_was_lost(self.lost, self.deserters, names)
