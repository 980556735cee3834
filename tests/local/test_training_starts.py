"""One script under every way of starting ranks; and the meeting points env:// and tcp://."""

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch

from orchestrator.training import spawn
from orchestrator.training.errors import UserError
from tests.local.conftest import Orch
from tests.local.programs.introduce import introduce
from tests.local.programs.ranks import PROGRAMS, Training, kept_port, run, trainings

pytestmark = pytest.mark.timeout(400)  # many trainings, in a fixture


def under_orch(orch: Orch, folder: Path, launcher: str) -> list[dict]:
    """What the two ranks of a run tell, whose ranks that launcher starts."""
    told = folder / launcher
    told.mkdir()
    job = folder / f"{launcher}.yaml"
    job.write_text(f"script: introduce.py\nargs: ['{told}']\nlauncher: {launcher}\n")
    done = orch.with_torch("submit", str(job), "-p", "local", "--nproc-per-node", "2", "-f")
    assert done.code == 0, done.err
    return [json.loads((told / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.full(
    "tests/local/test_launcher.py::test_every_launcher_joins_the_ranks",
    "tests/local/test_launcher.py::test_the_environment_is_torchruns",
    "tests/local/test_training_starts.py::test_the_first_rank_that_raises_is_the_one_that_is_told_of",
)
def test_ranks_are_the_same_however_they_are_started(orch: Orch, tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    shutil.copy(PROGRAMS / "introduce.py", folder)
    expected = json.loads(json.dumps(spawn(introduce, 2)))
    assert [told["rank"] for told in expected] == [[0, 2], [1, 2]]
    assert expected[0]["weights"] == expected[1]["weights"]
    assert all(told["met"] and None not in told["environment"].values() for told in expected)
    for launcher in ("fork", "exec", "torchrun", "accelerate"):
        assert under_orch(orch, folder, launcher) == expected, launcher


def fails_on_one(rank_that_fails: int) -> int:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    if rank == rank_that_fails:
        raise LookupError(f"rank {rank} has lost its way")
    torch.distributed.barrier()
    return rank


def test_the_first_rank_that_raises_is_the_one_that_is_told_of() -> None:
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="LookupError: rank 1 has lost its way"):
        spawn(fails_on_one, 2, 1)
    assert spawn(fails_on_one, 2, -1, start="fork") == [0, 1]
    with pytest.raises(UserError, match="give 1 or more"):
        spawn(fails_on_one, 0)


def test_ranks_meet_at_a_tcp_address_too(tmp_path: Path) -> None:
    nowhere = {"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"}
    with kept_port() as port:
        meeting = ("--steps", "2", "--init-method", f"tcp://127.0.0.1:{port}")
        [ended] = trainings(2, [Training("tcp", meeting, nowhere)], tmp_path)
    assert [rank.code for rank in ended] == [0, 0], ended
    assert json.loads((tmp_path / "tcp" / "result.json").read_text())["world_size"] == 2


def test_all_ranks_are_told_of_the_one_that_can_not_train(tmp_path: Path) -> None:
    for rank in run(2, [str(PROGRAMS / "choosing.py"), "gloo", "It has no GPU."], tmp_path):
        assert f"Rank 1 on {socket.gethostname()} can't train: It has no GPU." in rank.out, rank.err


def test_how_long_ranks_wait_for_each_other_can_be_changed(tmp_path: Path) -> None:
    patient, waiting = run(2, [str(PROGRAMS / "choosing.py"), "gloo", "gloo", "impatient"], tmp_path)
    assert patient.out == "joined by gloo\nwaited no longer\n", patient.err
    assert waiting.out == "joined by gloo\n", waiting.err


COLLECTED = """
import atexit, gc
import torch
from torch import nn
from orchestrator.training.data.samples import Data

kept = []
atexit.register(lambda: print("frozen", *kept, gc.get_freeze_count()))

def data(options):
    samples = (torch.randn(12, 3), torch.randn(12, 1))
    return Data(samples, samples, "noise")

def model(options):
    return nn.Linear(3, 1)

def loss(outputs, targets):
    kept.append(gc.get_freeze_count())
    return nn.functional.mse_loss(outputs, targets)
"""


def test_garbage_is_not_looked_for_in_what_lives_since_the_first_step(tmp_path: Path) -> None:
    task = tmp_path / "collected.py"
    task.write_text(COLLECTED)
    argv = ["-m", "orchestrator.training", "--task", str(task), "--steps", "3", "--global-batch", "4"]
    [ended] = run(1, argv, tmp_path)
    assert ended.code == 0, ended.err
    first, second, third, *_, last = map(int, ended.out.splitlines()[-1].split()[1:])
    assert (first, last) == (0, 0)
    assert min(second, third) > 10_000


STAND_IN = COLLECTED.replace('"noise")', '"noise", stand_in=True)')


EQUAL = pytest.mark.full(
    "tests/local/test_training_starts.py::test_epochs_that_do_not_count_for_a_stand_in_are_said[2-True]"
)


@pytest.mark.parametrize(("given", "said"), [("2", True), pytest.param("4", False, marks=EQUAL)])
def test_epochs_that_do_not_count_for_a_stand_in_are_said(tmp_path: Path, given: str, said: bool) -> None:
    task = tmp_path / "stand_in.py"
    task.write_text(STAND_IN)
    argv = ["-m", "orchestrator.training", "--task", str(task), "--global-batch", "4"]
    [ended] = run(1, [*argv, "--epochs", given, "--offline-epochs", "4"], tmp_path)
    assert ended.code == 0, ended.err
    assert "step 12/12  epoch 4" in ended.out
    assert ("4 epochs of it (offline_epochs), not 2 (epochs)" in ended.out) is said
