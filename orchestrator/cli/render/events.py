"""Renders a run's events for people: each line has the time, the node, the kind, and a sentence or the other fields."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from orchestrator.cli.render.escapes import one_line
from orchestrator.cli.render.event_sentences import sentence

MOST_SHOWN: Final = 120  # the most characters of a value; --json prints whole values
_SHOWN_BEFORE: Final = frozenset({"kind", "time", "node"})
_UNSHOWN: Final = frozenset({"mono", "seq"})


def event_lines(events: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each event. An event that the submitting machine wrote has a dash in place of a node."""
    for event in events:
        node = event.get("node")
        where = "-" if node is None else f"node {node}"
        yield one_line(f"{_clock(event.get('time'))}  {where:<8}  {event['kind']:<18}  {_details(event)}").rstrip()


def time_of(event: Mapping[str, Any]) -> float:
    """Return the time of an event, by which events are sorted. An event with a damaged record has the time 0."""
    when = event.get("time")
    return float(when) if isinstance(when, int | float) else 0.0


def _clock(when: object) -> str:
    """Return date and time in this machine's zone, with milliseconds; a dash if `when` is not a time."""
    if not isinstance(when, int | float):
        return "-"
    try:
        return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(when))}.{int(when % 1 * 1000):03d}"
    except (OverflowError, ValueError, OSError):
        return "-"


def _details(event: Mapping[str, Any]) -> str:
    if said := sentence(event):
        return said
    values = {name: value for name, value in event.items() if name not in _SHOWN_BEFORE | _UNSHOWN}
    return "  ".join(f"{name}={_word(value)}" for name, value in values.items())


def _word(value: object) -> str:
    is_one_word = isinstance(value, str) and value != "" and not any(char.isspace() or char in "\"'=" for char in value)
    text = str(value) if is_one_word else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
