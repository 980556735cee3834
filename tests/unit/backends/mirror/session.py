"""A stand-in for a session with a machine: the server's own functions, called in this process."""

from __future__ import annotations

from tests.machines import FakeMachine


class LocalSession(FakeMachine):
    """A session whose other end is this process; it breaks after `calls` requests."""

    def __init__(self, calls: int | None = None) -> None:
        super().__init__("n1", left=calls)
