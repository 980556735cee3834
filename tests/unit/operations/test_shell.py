"""What `orch shell RUN -- COMMAND` starts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.operations.debugging.shell import shell
from orchestrator.outcome.verdict import Verdict
from orchestrator.runs.store import RunDir
from tests.unit.cli.test_cli import make_run


@pytest.fixture
def run() -> RunDir:
    run = make_run("r-111111", Verdict("failed", "infra", "lost"))
    run.write("plan.json", {"tasks": [{"code_dir": str(run.path)}]})
    return run


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("pwd; echo b",), "{folder}\nb\n"), (("echo $((1 + 1))",), "2\n"), (("pwd",), "{folder}\n"),
        (("printf", "%s;", "a b", "c"), "a b;c;"),
    ],
)  # fmt: skip
def test_one_word_is_a_line_of_the_shell_as_for_ssh(run: RunDir, command: tuple[str, ...], said: str) -> None:
    argv = shell(run, 0, command, terminal=False).argv
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=Path.home(), env=dict(os.environ))
    assert done.stdout == said.format(folder=run.path)
