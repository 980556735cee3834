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
from tests.local.programs.ranks import PROGRAMS, Training, trainings

pytestmark = pytest.mark.timeout(400)  # many trainings, in a fixture


def under_orch(orch: Orch, folder: Path, launcher: str) -> list[dict]:
    """What the two ranks of a run tell, whose ranks that launcher starts."""
    told = folder / launcher
    told.mkdir()
    job = folder / f"{launcher}.yaml"
    job.write_text(f"script: introduce.py\nargs: ['{told}']\nlauncher: {launcher}\n")
    done = orch("submit", str(job), "-p", "local", "--nproc-per-node", "2", "-f")
    assert done.code == 0, done.err
    return [json.loads((told / f"{rank}.json").read_text()) for rank in range(2)]


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
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    nowhere = {"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"}
    [ended] = trainings(2, [Training("tcp", ("--steps", "2", "--init-method", address), nowhere)], tmp_path)
    assert [rank.code for rank in ended] == [0, 0], ended
    assert json.loads((tmp_path / "tcp" / "result.json").read_text())["world_size"] == 2
