"""Events for tests, as they are read from a line of a record."""

from __future__ import annotations

from typing import Any

from orchestrator.protocol.events import Event, read_event


def event(kind: str, node: int | None = None, **values: Any) -> Event:
    """Return an event of this kind; a test that leaves out a field that the kind must have fails here."""
    found = read_event({"kind": kind, **({} if node is None else {"node": node}), **values})
    assert found is not None, (kind, values)
    return found
