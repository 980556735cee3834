"""A stand-in for a session with a machine: the server's own functions, called in this process."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from orchestrator.errors import BackendError
from orchestrator.node.server.request import Part, RefusedError
from orchestrator.node.server.server import HOME
from orchestrator.transport.address import Address


class LocalSession:
    """A session whose other end is this process; it breaks after `calls` requests."""

    is_own = False
    address = Address("n1")

    def __init__(self, calls: int | None = None) -> None:
        self.left = calls

    def call(self, do: str, payload: bytes = b"", *, timeout: float | None = None, **values: Any) -> Any:
        return self.ask(do, payload, **values).wait(timeout)

    def ask(self, do: str, payload: bytes = b"", *, sink: Any = None, most: int = 0, **values: Any) -> Any:
        return Asked(self, do, payload, sink, values)

    @contextlib.contextmanager
    def for_bytes(self, count: int) -> Iterator[LocalSession]:
        yield self


class Asked:
    """A request that is answered when it is waited for."""

    def __init__(self, session: LocalSession, do: str, payload: bytes, sink: Any, values: dict[str, Any]) -> None:
        self.session, self.do, self.payload, self.sink, self.values = session, do, payload, sink, values

    def wait(self, timeout: float | None = None) -> Any:
        if self.session.left is not None:
            self.session.left -= 1
            if self.session.left < 0:
                raise BackendError("n1: the connection was closed", transient=True)
        answer = getattr(import_module(f"orchestrator.node.server.{HOME[self.do]}"), self.do)
        try:
            reply, data = answer(self.values, self.payload)
        except (OSError, RefusedError) as error:
            raise BackendError(f"n1: {error}") from error
        if isinstance(data, Part):
            with tempfile.TemporaryFile() as file:
                data.send(file.fileno())
                file.seek(0)
                self.sink(file, data.count)
            data = b""
        return json.loads(json.dumps(reply)), data
