"""The programs of the oracle over SSH, on Slurm and in containers: orch does what the hand does, to the last byte."""

from __future__ import annotations

import json
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import LAPTOP
from tests.cluster.scheduler import ORCH
from tests.cluster.test_containers import container
from tests.oracle.compare import Place, assert_same, assert_sweep_is_as_by_hand
from tests.oracle.table import BARE, FRAMEWORKS, PROGRAM, TORCH, Program
from tests.patience import PATIENCE
from tests.result import Result
from tests.testbed.layout import REPO

pytestmark = [
    pytest.mark.cluster("slurm", "docker"),
    pytest.mark.full("tests/local/test_oracle.py::test_orch_does_what_the_hand_does"),
]
BARE_PYTHON = "/shared/bare"
ENVIRONMENTS = {"bare": BARE_PYTHON, "torch": str(REPO / ".venv"), "frameworks": str(REPO / ".venv-frameworks")}


@dataclass(kw_only=True)
class Alice(Place):
    """alice at ctl, who has the environment of a program at the same path on every host."""

    testbed: Control
    state: str = ""  # where her runs are

    def shell(self, folder: Path, words: list[str], python: str) -> Result:
        return self._run(folder, words, PATH=f"{ENVIRONMENTS[python]}/bin:/usr/bin:/bin")

    def orch(self, folder: Path, *words: str, python: str = "bare") -> Result:
        if words[0] in ("run", "submit"):
            folder_of_python = f"{ENVIRONMENTS[python]}/bin"
            path = ("--env", f"PATH={folder_of_python}:/usr/bin:/bin")
            words = (words[0], "--set", f"profile.python={folder_of_python}/python", *path, *words[1:])
        own = {"ORCH_HOME": self.state} if self.state else {}
        line = [sys.executable, "-m", "orchestrator.cli", *words]
        done = self._run(folder, line, PYTHONPATH=str(REPO), NO_COLOR="1", **own)
        return Result(done.code, done.out, done.err, words)

    def _run(self, folder: Path, words: list[str], **environment: str) -> Result:
        line = ("env", f"--chdir={folder}", *words)
        return self.testbed.run(LAPTOP, *line, timeout=2 * PATIENCE, **environment)

    def seen(self, path: Path) -> Path:
        return self.testbed.file(LAPTOP, str(path))

    def lay(self) -> Path:
        folder = super().lay()
        self.testbed.output(LAPTOP, "chown", "-R", "alice:", str(self.root), user="root")
        return folder


def place(testbed: Control, backend: str, image: str) -> Alice:
    """alice with a profile of the kind: one machine with one rank, unless a line says otherwise, or two machines."""
    kind, _, two = backend.partition("-")
    if not testbed.file(LAPTOP, BARE_PYTHON).exists():
        testbed.output(LAPTOP, sys.executable, "-m", "venv", "--without-pip", BARE_PYTHON, user="root")
    root = Path("/shared/alice" if kind == "slurm" else "/home/alice") / f"oracle-{secrets.token_hex(4)}"
    profile = {
        "ssh": {"kind": "ssh", "hosts": ["n1", "n2"] if two else ["n1"]},
        "container": {"kind": "ssh", "hosts": ["n1"], "runtime": "docker"},
        "slurm": {"kind": "slurm", "nodes": 2 if two else 1, "time": "1h"},
    }[kind]
    options = ["-p", f"{root}/profile.yaml"]
    if two:
        options += ["--nodes", "2", "--nproc-per-node", "1"]
    if kind == "container":
        boxed = container(image)
        boxed["mounts"].append(f"{BARE_PYTHON}:{BARE_PYTHON}:ro")
        options += ["--set", f"job.container={json.dumps(boxed)}"]
    alice = Alice(root=root, options=tuple(options), testbed=testbed, state=ORCH if kind == "slurm" else "")
    alice.seen(root).mkdir(parents=True)
    (alice.seen(root) / "profile.yaml").write_text(json.dumps({"nproc_per_node": 1, **profile}))
    return alice


ONE = [*BARE, *TORCH, *FRAMEWORKS]
# In a container there is no Lightning and no DeepSpeed, and what a program does there depends on less than its line.
BOXED = [*BARE, *(PROGRAM[name] for name in ("ddp", "accelerate_two", "spawn_12355", "parent_session", "loky"))]
TWO = [PROGRAM[name] for name in ("ddp", "standalone_module", "accelerate_two", "trainer_two")]
CASES = [
    *(("ssh", program) for program in ONE),
    *(("slurm", program) for program in ONE),
    *(("container", program) for program in BOXED),
    *(("ssh-two", program) for program in TWO),
    *(("slurm-two", program) for program in TWO),
]


@pytest.mark.parametrize(
    ("backend", "program"), [pytest.param(*case, id=f"{case[0]}-{case[1].name}") for case in CASES]
)
def test_orch_does_what_the_hand_does(testbed: Control, image: str, backend: str, program: Program) -> None:
    alice = place(testbed, backend, image)
    wanted = alice.by_hand(program, program.words)
    _, got = alice.by_orch(program)
    assert_same(program, got, wanted)


@pytest.mark.parametrize("backend", ["ssh", "slurm", "container"])
def test_each_run_of_a_sweep_does_what_the_hand_does_and_the_best_one_is_delivered(
    testbed: Control, image: str, backend: str
) -> None:
    assert_sweep_is_as_by_hand(place(testbed, backend, image), PROGRAM["plain"], "--lr", ("0.4", "0.1"))
