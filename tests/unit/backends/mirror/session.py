"""A stand-in for a session with a machine: the server's own functions, called in this process."""

from __future__ import annotations

import json
from typing import Any

from tests.machines import Asked, FakeMachine


class LocalSession(FakeMachine):
    """A session whose other end is this process; it breaks after `calls` requests."""

    def __init__(self, calls: int | None = None) -> None:
        super().__init__("n1", left=calls)

    def ask(self, verb: str, payload: bytes = b"", *, sink: Any = None, most: int = 0, **values: Any) -> Any:
        return Sent(self, verb, payload, sink, values)


class Sent(Asked):
    """A request whose answer has been JSON, as over a connection."""

    def answer(self) -> Any:
        reply, data = super().answer()
        return json.loads(json.dumps(reply)), data
