"""Real runs on this machine: a command line in a subprocess, and the certainty that nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.looking.state import state_of
from orchestrator.node.system.processes import marked, wait_gone
from orchestrator.runs.store import RunDir, find_run, live_runs
from orchestrator.supervisor.reconcile import reconcile
from tests.patience import PATIENCE
from tests.result import Result
from tests.took import print_all

REPO = Path(__file__).parents[2]
# For a job that trains: its ranks would each import this on their own, which takes longer than their steps.
WARM = "warm_imports: [torch._dynamo, orchestrator.training.train]\n"
WARM_DIGITS = ("--set", "job.warm_imports=[torch._dynamo, orchestrator.training.train, sklearn.datasets]")


@dataclass(frozen=True)
class Orch:
    """The command line with a state folder of its own.

    `python` is the interpreter of the ranks that `orch submit` and `orch run` start: that of the tests if it is empty.
    """

    home: Path
    cwd: Path
    python: str = ""

    @property
    def with_torch(self) -> Orch:
        """The same command line, whose ranks can import torch."""
        return replace(self, python="")

    def environment(self, **extra: str) -> dict[str, str]:
        return {**os.environ, "ORCH_HOME": str(self.home), "NO_COLOR": "1", **extra}

    def argv(self, *args: str) -> list[str]:
        if self.python and args[0] in ("submit", "run"):
            args = (args[0], "--set", f"profile.python={self.python}", *args[1:])
        return [sys.executable, "-m", "orchestrator.cli", *args]

    def __call__(self, *args: str, timeout: float = PATIENCE, cwd: Path | None = None, **extra: str) -> Result:
        done = subprocess.run(
            self.argv(*args),
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd or self.cwd,
            env=self.environment(**extra),
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert "Traceback" not in done.stderr or "traceback:" in done.stderr, done.stderr
        return Result(done.returncode, done.stdout, done.stderr, args)

    def submit(self, *args: str, **extra: str) -> RunDir:
        """Submit detached and return the run."""
        done = self("submit", *args, "--json", **extra)
        assert done.code == 0, done.err
        return self.run(done.json["run_id"])

    def run(self, reference: str = "last") -> RunDir:
        return find_run(self.home, reference)

    def events(self, run: RunDir, kind: str) -> list[dict[str, Any]]:
        return [event for event in run.event_lines() if event["kind"] == kind]


def files_with(folder: Path, needle: bytes) -> list[Path]:
    """The files below a folder that hold this; a supervisor may be replacing some of them meanwhile."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and needle in path.read_bytes():
                found.append(path)
    return found


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter without packages, whose launchers need not import torch: that takes longer than most tests."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    return str(folder / "bin" / "python")


@pytest.fixture
def orch(tmp_path: Path, request: pytest.FixtureRequest, bare_python: str) -> Iterator[Orch]:
    """The command line, whose ranks have no torch unless a test takes `orch.with_torch`.

    Whatever it started and a test left running is ended by recorded id.
    """
    runner = Orch(tmp_path / "home", REPO, bare_python)
    yield runner
    for run in live_runs(runner.home):
        if not state_of(run).is_final:
            runner("cancel", run.run_id, "--now")
        reconcile(runner.home, run)
    print_all(runner.home / "runs", request.node.nodeid)
    for run in (runner.home / "runs").glob("*"):
        assert wait_gone(marked(run.name), PATIENCE) == [], f"{run.name} left processes"


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Path]:
    """Write files into a folder, and return it."""

    def write(**files: str) -> Path:
        folder = tmp_path / "project"
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            stem, _, suffix = name.rpartition("_")
            (folder / f"{stem}.{suffix}").write_text(text)
        return folder

    return write
