"""Corrects the times of events whose node has a wrong clock."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.outcome.restart import opened_start
from orchestrator.protocol.events import Clock, Event, of


def correct_clock_skew(events: Sequence[Event]) -> list[Event]:
    """Return the events with their times converted from the nodes' clocks to the submitting machine's clock. The
    events of class Clock have the differences.
    """
    ahead: dict[tuple[int | None, int], float] = {(each.of, each.start): each.ahead for each in of(events, Clock)}
    start: dict[int | None, int] = {}
    timed = []
    for event in events:
        if (opened := opened_start(event)) is not None:
            start[event.node] = opened.start
        off = ahead.get((event.node, start.get(event.node, -1)))
        timed.append(event if off is None else event.timed(round(event.time - off, 3)))
    return timed
