"""The connection to a machine is cut at random moments: nothing is lost, nothing is doubled, nothing stays half."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import pytest

from orchestrator.backends.mirror.checkpoints import bring_newest
from orchestrator.backends.mirror.growing import Copy, update_all
from orchestrator.backends.mirror.outputs import Outputs
from orchestrator.errors import BackendError
from orchestrator.runs.store import RunDir
from tests.machines import FakeMachine
from tests.unit.backends.mirror.test_checkpoints import checkpoint

CUTS = 4  # of each run
GROWING = ("nodes/0/attempt_0/rank_0.log", "nodes/0/samples.jsonl", "nodes/0/events.jsonl", "metrics.jsonl")


def begin(tmp_path: Path, chance: random.Random) -> tuple[RunDir, Path]:
    """Return a run here, and its folder on a machine, where it has written files of every kind."""
    run, there = RunDir(tmp_path / "here/runs/r-1"), tmp_path / "orch/runs/r-1"
    run.path.mkdir(parents=True)
    run.write("run.json", {"nnodes": 1, "kind": "ssh", "profile": {"workdir": str(tmp_path / "orch")}})
    task = {"code_dir": str(there / "code"), "checkpoint_dir": str(there / "checkpoints")}
    run.write("plan.json", {"tasks": [task], "job": {"outputs": {}}})
    for name in ("nodes/0/attempt_0", "code/many", "outputs", "checkpoints"):
        (there / name).mkdir(parents=True)
    for number in range(30):
        (there / f"code/many/{number}").write_bytes(chance.randbytes(chance.randrange(3000)))
    (there / "outputs/large.bin").write_bytes(chance.randbytes(2_500_000))
    checkpoint(there / "checkpoints", 1, chance.randbytes(1_500_000))
    write_more(there, chance)
    return run, there


def write_more(there: Path, chance: random.Random) -> None:
    for name in GROWING:
        with (there / name).open("ab") as file:
            file.write(b"".join(b"%d\n" % chance.randrange(10**9) for _ in range(chance.randrange(500))))


def bring(run: RunDir, there: Path, machine: FakeMachine) -> None:
    """Do what the supervisor does while a run continues and after its end."""
    update_all([Copy(run, 0, str(there), str(there / "checkpoints"), None)], machine)
    bring_newest(run, machine, str(there / "checkpoints"), ["step_00000001"])
    Outputs(run, 0).bring(machine, final=True)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_a_connection_that_is_cut_anywhere_loses_and_doubles_nothing(tmp_path: Path, seed: int, is_own: bool) -> None:
    chance = random.Random(seed)
    run, there = begin(tmp_path, chance)
    for _ in range(CUTS):
        machine = FakeMachine(left_bytes=chance.choice((chance.randrange(4_500_000), chance.randrange(60_000))))
        machine.is_own = is_own
        with contextlib.suppress(BackendError):
            bring(run, there, machine)
        write_more(there, chance)
    bring(run, there, FakeMachine())
    for name in GROWING:
        assert (run.path / name).read_bytes() == (there / name).read_bytes(), name
    assert files(run.path / "checkpoints") == files(there / "checkpoints")
    brought = {f"many/{name}": data for name, data in files(there / "code/many").items()}
    assert files(run.path / "outputs") == {**brought, "large.bin": (there / "outputs/large.bin").read_bytes()}


def test_what_has_come_before_the_cut_does_not_come_again(tmp_path: Path) -> None:
    run, there = begin(tmp_path, random.Random(1))
    (there / "outputs/large.bin").write_bytes(os.urandom(5 << 20))
    sent = 0
    for left in (3_000_000, 3_000_000, 30_000_000):
        machine = FakeMachine(left_bytes=left)
        with contextlib.suppress(BackendError):
            bring(run, there, machine)
        assert machine.left_bytes is not None
        sent += left - max(0, machine.left_bytes)
    whole = sum(len(data) for folder in ("code", "outputs", "checkpoints") for data in files(there / folder).values())
    assert sent < whole + 100_000
