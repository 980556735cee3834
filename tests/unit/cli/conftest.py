"""The command line within the tests' own process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

import orchestrator.cli
from tests.result import Result


@pytest.fixture
def in_process(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command line in the current folder, through main(), which makes the exit codes."""

    def run(*argv: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["orch", *argv])
        with pytest.raises(SystemExit) as ended:
            orchestrator.cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Result(int(ended.value.code or 0), out, err, argv)

    return run
