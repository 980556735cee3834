"""Corrects the times of events whose node has a wrong clock. Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.outcome.restart import opens_start
from orchestrator.protocol.events import EventKind


def correct_clock_skew(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events with the nodes' times corrected to the submitting machine's clock, by the events `clock`."""
    ahead = {
        (each.get("of"), each.get("start")): each.get("ahead") for each in events if each.get("kind") == EventKind.CLOCK
    }
    start: dict[Any, Any] = {}
    timed = []
    for event in events:
        node, time = event.get("node"), event.get("time")
        if opens_start(event):
            start[node] = event.get("start")
        off = ahead.get((node, start.get(node)))
        if isinstance(off, (int, float)) and isinstance(time, (int, float)):
            event = {**event, "time": round(time - off, 3)}  # noqa: PLW2901
        timed.append(event)
    return timed
