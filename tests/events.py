"""Events for tests, as they are read from a line of a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.protocol.events import Event, read_event
from orchestrator.protocol.rank_reports import Culprit
from orchestrator.protocol.typed import Fields, read


def event(kind: str, node: int | None = None, **values: Any) -> Event:
    """Return an event of this kind; a test that leaves out a field that the kind must have fails here."""
    (found,) = typed([{"kind": kind, **({} if node is None else {"node": node}), **values}])
    return found


def typed(lines: Iterable[Mapping[str, Any] | Event]) -> list[Event]:
    """Return the events of parsed lines; a line that is no event fails here."""
    found = []
    for line in lines:
        made = read_event(line)
        assert made is not None, line
        found.append(made)
    return found


def culprit(**values: Any) -> Culprit:
    """Return the end of a rank, by default of rank 0."""
    return read(Culprit, {"rank": 0, **values})


def by_name(value: Any) -> Any:
    """Return an event, a message or a report as a dictionary, for tests that compare a few of its fields."""
    if isinstance(value, Fields):
        kind = getattr(value, "kind", "")
        return {**({"kind": kind} if kind else {}), **{name: by_name(each) for name, each in vars(value).items()}}
    if isinstance(value, Mapping):
        return {name: by_name(each) for name, each in value.items()}
    return tuple(map(by_name, value)) if isinstance(value, list | tuple) else value
