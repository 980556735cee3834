"""This machine as one whose places are asked for: what its server would answer over SSH, without one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from orchestrator.errors import BackendError
from orchestrator.transport.address import Address


class ThisMachine:
    """Both the pool and its only session."""

    def session(self, address: Address, workdir: str) -> ThisMachine:
        """Return itself."""
        return self

    def call(self, do: str, payload: bytes = b"", *, timeout: float | None = None, **values: Any) -> tuple[Any, bytes]:
        """Answer as orch's server does; BackendError with its sentence."""
        from orchestrator.node.server.request import RefusedError  # noqa: PLC0415 (`orch status` asks for no places)
        from orchestrator.node.server.server import HOME  # noqa: PLC0415 (as above)

        handler = getattr(import_module(f"orchestrator.node.server.{HOME[do]}"), do)
        try:
            return handler(values, payload)[0], b""
        except RefusedError as error:
            raise BackendError(f"this machine: {error}", transient=error.transient) from error
        except OSError as error:
            raise BackendError(f"this machine: {error}") from error
