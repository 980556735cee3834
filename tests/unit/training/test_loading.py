"""Batches of a Dataset: those of tensors in memory, whoever reads them, and what is said where there is none."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from orchestrator.training.data import loading
from orchestrator.training.data.sampler import ExactSampler, Share, pick
from orchestrator.training.data.samples import Data, count
from orchestrator.training.data.task import Task, load_data
from orchestrator.training.distributed.ranks import Ranks
from orchestrator.training.errors import DataError, UserError
from orchestrator.training.options import parse

CPU = torch.device("cpu")
TENSORS = (torch.arange(37.0).reshape(37, 1), torch.arange(37))
TASK = Task("t", data=lambda _: None, model=lambda _: None)  # type: ignore[arg-type, return-value]


def source(dataset: Any, *arguments: str, rank: int = 0, device: torch.device = CPU) -> loading.Source:
    options = parse(["--task", "t.py", "--workers", "0", *arguments])
    ranks = Ranks(rank=rank, local_rank=rank, world_size=rank + 1, local_world_size=rank + 1)
    return loading.source(dataset, "training", TASK, options, ranks, device)


def batches(found: loading.Source, rank: int, epoch: int, offset: int = 0) -> list[tuple[int, list[list[float]]]]:
    sampler = ExactSampler(37, 12, rank=rank, world_size=3, seed=5)
    sampler.set_epoch(epoch)
    return [
        (share.count, [part.flatten().tolist() for part in pick(tensors, share.indices)])
        for tensors, share in found.batches(sampler.shares(offset), epoch)
    ]


class Random(Dataset[Any]):
    """Something random in each sample, of the kind that its number asks for."""

    def __getitem__(self, index: int) -> tuple[float, int]:
        drawn = (lambda: float(torch.rand(())), random.random, lambda: float(np.random.rand()))[index % 3]
        return drawn(), index

    def __len__(self) -> int:
        return 37


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_dataset_gives_the_batches_of_tensors_also_from_the_middle_of_an_epoch(rank: int) -> None:
    read, resident = source(TensorDataset(*TENSORS)), source(TENSORS)
    for epoch in (0, 1):
        assert batches(read, rank, epoch) == batches(resident, rank, epoch)
        assert batches(read, rank, epoch, 24) == batches(resident, rank, epoch)[2:]
    assert batches(resident, rank, 0)[-1] == (1, [[8.0], [8]] if rank == 0 else [[0.0], [0]])  # the last has one


def test_what_chance_does_hangs_on_seed_epoch_and_sample_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()

    def drawn(epoch: int, shares: list[list[int]], *arguments: str) -> dict[int, float]:
        found = source(Random(), *arguments).batches((Share(torch.tensor(each), 9) for each in shares), epoch)
        return {
            int(n): float(value) for (values, numbers), _ in found for value, n in zip(values, numbers, strict=True)
        }

    at_once = drawn(0, [[0, 1, 2, 3, 4, 5]])
    assert drawn(0, [[5, 3], [4], [2, 1, 0]]) == at_once
    assert len(set(at_once.values())) == 6
    assert not set(drawn(1, [[0, 1, 2, 3, 4, 5]]).values()) & set(at_once.values())
    assert not set(drawn(0, [[0, 1, 2, 3, 4, 5]], "--seed", "1").values()) & set(at_once.values())
    assert torch.equal(torch.get_rng_state(), before)


class Broken(Dataset[Any]):
    """Samples of which some can't be read or do not fit the others."""

    def __getitem__(self, index: int) -> Any:
        if index == 20:
            raise OSError("20.png is cut short")
        return {"input": 1} if index == 30 else (torch.zeros(1 + index // 36), index)

    def __len__(self) -> int:
        return 37


@pytest.mark.parametrize(
    ("indices", "sentence"),
    [
        ([1, 20, 30], r"^Sample 20 of the training data can't be read on rank 1: OSError: 20\.png is cut short$"),
        ([30], r"^Samples? 30 of the training data .* on rank 1: TypeError: a sample must be a tuple of .* is a dict$"),
        ([*range(9), 36], r"^Samples 0, 1, 2, 3, 4, 5, 6, 7, \.\.\. of the training data can't be put into a batch"),
    ],
)
def test_a_sample_that_can_not_be_read_is_named_with_its_rank(indices: list[int], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence) as caught:
        list(source(Broken(), rank=1).batches([Share(torch.tensor(indices), 99)]))
    assert "Traceback" in str(caught.value.__cause__)


def test_a_worker_that_is_gone_is_said_in_a_sentence() -> None:
    error = loading.lost_worker(RuntimeError("DataLoader worker (pid 12) is killed by signal: Killed. "), 3)
    assert str(error).startswith(
        "Rank 3 has lost a process that reads its data: DataLoader worker (pid 12) is killed by signal: Killed. If"
    )
    assert loading.lost_worker(RuntimeError("Connection closed by peer"), 3) is None


@pytest.mark.parametrize(
    ("asked", "cores", "ranks", "workers"),
    [(None, 1, 1, 0), (None, 2, 1, 2), (None, 2, 2, 0), (None, 8, 3, 2), (None, 64, 4, 4), (7, 1, 1, 7), (0, 64, 1, 0)],
)
def test_workers_have_the_cores_that_a_rank_can_have(asked: int | None, cores: int, ranks: int, workers: int) -> None:
    assert loading.worker_count(asked, cores, ranks) == workers
    assert parse(["--task", "t", "--workers", str(asked) if asked is not None else "auto"]).workers == asked


class Stream(IterableDataset[Any]):
    """Samples that nobody can ask for by number."""

    def __iter__(self) -> Any:
        return iter(())


def test_data_that_workers_can_not_read_in_order_is_refused() -> None:
    with pytest.raises(UserError, match=r"A Stream can't be trained on: .* found again by its number after a resume"):
        count(Stream())
    task = Task("t", data=lambda _: Data(TENSORS, TENSORS, "numbers"), model=lambda _: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match=r"--workers 2 is for a task whose .* is in memory: leave the option out"):
        load_data(task, parse(["--task", "t.py", "--workers", "2"]), warn=pytest.fail)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_batches_come_to_a_gpu_from_wherever_the_samples_are() -> None:
    gpu = torch.device("cuda", 0)
    expected = batches(source(TENSORS), 1, 0)
    copied = loading.Copied(TENSORS, gpu, 0)
    for found in (source(TENSORS, device=gpu), source(TensorDataset(*TENSORS), device=gpu), copied):
        assert batches(found, 1, 0) == expected
        tensors: tuple[Tensor, ...] = next(iter(found.batches([Share(torch.tensor([1]), 1)])))[0]
        assert {tensor.device for tensor in tensors} == {gpu}
