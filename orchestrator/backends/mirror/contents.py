"""Contents by their sha256: which of them a machine lacks, so that only these travel."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

from orchestrator.errors import BackendError
from orchestrator.transport.answers import data_of
from orchestrator.transport.machine import Machine

HASH_SECONDS: Final = 600.0  # what is there already is hashed


def missing_on(machine: Machine, workdir: str, known: Collection[str], cache: str) -> list[str]:
    """Return which of these sha256s a machine's cache lacks; BackendError where it names others."""
    asked = json.dumps(sorted(known)).encode()
    answer = machine.call("missing", asked, timeout=HASH_SECONDS, workdir=workdir, cache=cache, most=len(asked))
    found: list[str] = data_of(machine.name, "missing", answer[1])
    if all(each in known for each in found):
        return found
    raise BackendError(f"{machine.name}: it does not say which contents of its cache of {cache} it lacks")
