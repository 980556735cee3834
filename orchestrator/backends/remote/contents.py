"""Contents by their sha256: which of them a machine lacks, so that only these travel."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final, Protocol

from orchestrator.errors import BackendError
from orchestrator.transport.answers import data_of

HASH_SECONDS: Final = 600.0  # what is there already is hashed


class Awaited(Protocol):
    """An answer that may not be here yet."""

    def wait(self, timeout: float | None = ...) -> tuple[dict[str, Any], bytes]:
        """Return it; BackendError as for `call`."""


class Machine(Protocol):
    """What orch's server on a machine is asked through: a session over SSH, or this very process."""

    @property
    def host(self) -> str:
        """Return what people call the machine."""

    def call(
        self, do: str, payload: bytes = b"", *, timeout: float | None = ..., most: int = ..., **values: Any
    ) -> tuple[dict[str, Any], bytes]:
        """Return its answer; BackendError where it refuses, or is out of reach."""

    def ask(self, do: str, payload: bytes = b"", *, most: int = ..., **values: Any) -> Awaited:
        """Send a request and return at once."""


def missing_on(machine: Machine, workdir: str, known: Collection[str], cache: str) -> list[str]:
    """Return which of these sha256s a machine's cache lacks; BackendError where it names others."""
    asked = json.dumps(sorted(known)).encode()
    answer = machine.call("missing", asked, timeout=HASH_SECONDS, workdir=workdir, cache=cache, most=len(asked))
    found: list[str] = data_of(machine.host, "missing", answer[1])
    if all(each in known for each in found):
        return found
    raise BackendError(f"{machine.host}: it does not say which contents of its cache of {cache} it lacks")
