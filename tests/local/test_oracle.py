"""The programs of the oracle on this machine: orch does what the hand does, to the last byte of every file."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.oracle.compare import Place, assert_same, assert_sweep_is_as_by_hand
from tests.oracle.table import PROGRAM, Program
from tests.patience import PATIENCE
from tests.result import Result

from .conftest import REPO, Orch

FULL = pytest.mark.full("tests/local/test_oracle.py::test_orch_does_what_the_hand_does[ddp]")
# What `make test` runs: a program for each kind of fault. One of them imports torch, and the sweep has a plain program.
CHEAP = {"fails", "refuses_ranks", "writes_around", "overwrites", "shell", "ddp"}


@dataclass(kw_only=True)
class Here(Place):
    """This machine, at a shell in which a virtual environment is active."""

    runner: Orch
    bare: str

    def _environment(self, python: str) -> dict[str, str]:
        environment = {
            "bare": Path(self.bare).parent,
            "torch": REPO / ".venv/bin",
            "frameworks": REPO / ".venv-frameworks/bin",
        }
        return {"PATH": f"{environment[python]}:{os.environ['PATH']}"}

    def shell(self, folder: Path, words: list[str], python: str) -> Result:
        done = subprocess.run(
            words, cwd=folder, env={**os.environ, **self._environment(python)}, timeout=PATIENCE,
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr)

    def orch(self, folder: Path, *words: str, python: str = "bare") -> Result:
        return self.runner(*words, cwd=folder, **self._environment(python))

    def seen(self, path: Path) -> Path:
        return path


@pytest.fixture
def here(orch: Orch, tmp_path: Path, bare_python: str) -> Here:
    profile = tmp_path / "one.yaml"
    profile.write_text("kind: local\nnproc_per_node: 1\n")
    return Here(root=tmp_path / "user", options=("-p", str(profile)), runner=orch.with_torch, bare=bare_python)


PARAMETERS = [pytest.param(program, id=name, marks=[FULL] * (name not in CHEAP)) for name, program in PROGRAM.items()]


@pytest.mark.parametrize("program", PARAMETERS)
def test_orch_does_what_the_hand_does(here: Here, program: Program) -> None:
    wanted = here.by_hand(program, program.words)
    _, got = here.by_orch(program)
    assert_same(program, got, wanted)


def test_each_run_of_a_sweep_does_what_the_hand_does_and_the_best_one_is_delivered(here: Here) -> None:
    assert_sweep_is_as_by_hand(here, PROGRAM["plain"], "--lr", ("0.4", "0.1"))
