"""What `orch mcp` needs, and what it says if that is not there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.mcp import server
from tests.result import Result


@pytest.mark.parametrize("missing", ["mcp", "mcp.server.mcpserver"])
def test_without_the_package_the_command_to_install_it_is_said(
    missing: str, in_process: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "find_spec", lambda name: None if name == missing else object())
    done = in_process("mcp")
    assert done.code == 1
    assert done.out == ""
    assert "orch mcp needs the package mcp, version 2 or newer\n  pip install 'orchrun[mcp]'" in done.err
