"""What a machine is refused for, before anything is sent to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.remote.upload import prepare_node
from orchestrator.errors import BackendError
from orchestrator.runs.store import RunDir
from orchestrator.transport.address import Address
from tests.unit.specs.test_plan import planned, profile


class SentError(Exception):
    """The machine was found fit."""


class OldMachine:
    """A machine whose Python can't speak TLS 1.3."""

    address = Address("n1")

    def call(self, do: str, *_: Any, **values: Any) -> tuple[dict[str, Any], bytes]:
        if do != "hello":
            raise SentError
        has = {"time": 0.0, "cores": 1, "gpus": 0, "memory": 1 << 30, "free": 1 << 40, "workdir": "/w"}
        return {**has, "lacks_tls": "its Python has no ssl"}, b""


def test_a_node_that_can_not_prove_itself_takes_part_only_alone(tmp_path: Path) -> None:
    several, alone = planned().tasks[0], planned(a_profile=profile(nodes=1)).tasks[0]
    with pytest.raises(BackendError, match="n1: its Python has no ssl, by which nodes prove themselves") as refused:
        prepare_node(OldMachine(), RunDir(tmp_path), several, "/w", None, is_new=False)  # type: ignore[arg-type]
    assert "OpenSSL 1.1.1" in refused.value.hint
    with pytest.raises(SentError):
        prepare_node(OldMachine(), RunDir(tmp_path), alone, "/w", None, is_new=False)  # type: ignore[arg-type]
