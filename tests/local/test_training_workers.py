"""A Dataset that worker processes read: the weights of tensors in memory, and what becomes of workers that fail."""

import os
import select
import signal
from pathlib import Path

import pytest
import torch

from orchestrator.training.checkpoint import format as checkpoints
from tests.local.programs.ranks import PROGRAMS, Training, run, started, train, trainings, wait_for
from tests.patience import PATIENCE

pytestmark = pytest.mark.timeout(400)  # many trainings, in a fixture

LENGTH = ("--steps", "11", "--global-batch", "12", "--save-every", "100", "--option", "dropout=0.3")
DATASET = ("--option", "dataset=true", "--workers")
SMALL = PROGRAMS / "small.py"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found = checkpoints.newest(folder / "checkpoints")
    assert found is not None
    assert found.step == 11
    return checkpoints.load(found.path)[0]["model"]


def assert_same(one: Path, other: Path) -> None:
    for name, value in weights(one).items():
        assert torch.equal(value, weights(other)[name]), name


def test_weights_are_the_same_whoever_reads_the_samples_and_after_a_break(tmp_path: Path) -> None:
    noise = (*LENGTH, "--option", "noise=true", *DATASET)
    wanted = [
        Training("memory", LENGTH),
        Training("workers", (*LENGTH, *DATASET, "2")),
        Training("noise-alone", (*noise, "0")),
        # Within the second epoch, where an evaluation has been and workers are ahead of the training.
        Training("noise-broken", (*noise, "2", "--steps", "5")),
        Training("noise-broken", (*noise, "1")),
    ]
    ended = trainings(2, wanted, tmp_path)
    assert {rank.code for ranks in ended for rank in ranks} == {0}, ended
    assert_same(tmp_path / "workers", tmp_path / "memory")
    assert_same(tmp_path / "noise-broken", tmp_path / "noise-alone")
    with_noise, without = weights(tmp_path / "noise-alone"), weights(tmp_path / "memory")
    assert any(not torch.equal(value, without[name]) for name, value in with_noise.items())


@pytest.mark.parametrize(
    ("world_size", "option", "sentence"),
    [
        (
            2,
            "broken=20",
            "DataError: Sample 20 of the training data can't be read on rank {rank}: ValueError: the file 20",
        ),
        (1, "killed=20", "DataError: Rank {rank} has lost a process that reads its data: DataLoader worker (pid"),
    ],
)
def test_a_worker_that_fails_ends_the_ranks_and_says_why(
    world_size: int, option: str, sentence: str, tmp_path: Path
) -> None:
    ended = run(world_size, train(*LENGTH, *DATASET, "1", "--option", option, task=SMALL), tmp_path)
    assert all(rank.code not in (0, None) for rank in ended)
    said = [number for number, rank in enumerate(ended) if sentence.format(rank=number) in rank.err]
    assert len(said) == 1, ended  # the other one has lost its peer
    assert "small.py" in ended[said[0]].err or option.startswith("killed")


def workers_of(pid: int) -> set[int]:
    """The processes that a rank has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in children}


SPAWNED = pytest.mark.full(
    "tests/local/test_training_workers.py::test_workers_live_through_signals_to_everybody_and_end_with_their_rank[fork]"
)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=SPAWNED)])
def test_workers_live_through_signals_to_everybody_and_end_with_their_rank(start: str, tmp_path: Path) -> None:
    forever = ("--steps", "1000000", "--log-every", "1", "--eval-every", "1000000", "--save-every", "1000000")
    arguments = train(*LENGTH, *forever, *DATASET, "2", "--worker-start", start, task=SMALL)
    lines = tmp_path / "metrics.jsonl"
    with started(1, arguments, tmp_path) as ranks:
        wait_for(lines, '"step": 2,', ranks)
        rank = ranks.processes[0].pid
        workers = {pid: os.pidfd_open(pid) for pid in workers_of(rank)}
        assert len(workers) >= 2
        for signum in (signal.SIGUSR2, signal.SIGTERM):
            for pid in workers:
                os.kill(pid, signum)
        reached = lines.read_text().count("\n")
        wait_for(lines, f'"step": {reached + 20},', ranks)  # more than the workers were ahead
        for pid in (*workers, rank):  # which ends them
            os.kill(pid, signal.SIGTERM)
        [ended] = ranks.wait()
    assert ended.code == 95, ended.err
    assert "stopped by a signal at step" in ended.out
    for each in workers.values():
        assert select.select([each], [], [], PATIENCE)[0], "a process of the rank is left"
        os.close(each)


# A loop of somebody's own: its DataLoader is torch's, and nothing in it knows of signals.
OWN_LOADER = """
import torch
from torch.utils.data import DataLoader
from orchestrator.training import run

model = torch.nn.Linear(1, 1)
run.resume(model=model)
for step, batch in enumerate(DataLoader(torch.randn(10_000_000, 1), num_workers=2, multiprocessing_context="fork")):
    loss = model(batch).sum()
    print("step", step, flush=True)
    run.after_step(step + 1, loss=loss, model=model)
"""


def test_workers_of_a_loader_of_ones_own_live_through_signals_to_everybody(tmp_path: Path) -> None:
    with started(1, ["-c", OWN_LOADER], tmp_path) as ranks:
        wait_for(tmp_path / "out.0", "step 5\n", ranks)
        rank = ranks.processes[0].pid
        workers = {pid: os.pidfd_open(pid) for pid in workers_of(rank)}
        assert len(workers) == 2
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        reached = (tmp_path / "out.0").read_text().count("\n")
        wait_for(tmp_path / "out.0", f"step {reached + 20}\n", ranks)  # more than the workers were ahead
        os.kill(rank, signal.SIGTERM)
        [ended] = ranks.wait()
    assert ended.code == 95, ended.err
    for each in workers.values():
        assert select.select([each], [], [], PATIENCE)[0], "a process of the rank is left"
        os.close(each)
