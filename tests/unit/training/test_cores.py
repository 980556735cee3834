"""Ranks on the cores near their GPUs, by a folder that stands in for the kernel's and a card that torch describes."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from orchestrator.training.distributed import cores
from orchestrator.training.distributed.ranks import Ranks

GPU = torch.device("cuda", 1)
ADDRESS = "0000:4b:00.0"
FOUR = Ranks(rank=1, local_rank=1, world_size=4, local_world_size=4, grouped=True)


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """What each thread was bound to, on a node of 16 cores whose GPU torch knows the address of."""
    found: dict[int, set[int]] = {}
    card = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x4B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    monkeypatch.setattr(os, "sched_setaffinity", found.__setitem__)
    return found


def listed(folder: Path, words: str) -> Path:
    (folder / ADDRESS).mkdir()
    (folder / ADDRESS / "local_cpulist").write_text(words + "\n")
    return folder


def test_all_threads_of_a_rank_stay_on_the_cores_near_its_gpu(bound: dict[int, set[int]], tmp_path: Path) -> None:
    said = cores.stay_near(GPU, FOUR, listed(tmp_path, "0-3,8-11"))
    assert said == "on the 8 of 16 cores that are near the GPU"
    assert set(bound) == {int(thread) for thread in os.listdir("/proc/self/task")}
    assert all(each == {0, 1, 2, 3, 8, 9, 10, 11} for each in bound.values())


@pytest.mark.parametrize("words", ["0-15", "0-63", "32-63", "0-2", "", "all of them"])
def test_where_there_is_no_choice_or_too_few_are_near_nothing_changes(
    words: str, bound: dict[int, set[int]], tmp_path: Path
) -> None:
    assert cores.stay_near(GPU, FOUR, listed(tmp_path, words)) == ""
    assert bound == {}


def test_without_a_gpu_or_the_kernels_word_nothing_changes(
    bound: dict[int, set[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cores.stay_near(torch.device("cpu"), FOUR, listed(tmp_path, "0-3")) == ""
    assert cores.stay_near(GPU, FOUR, tmp_path / "nothing") == ""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(name="an older torch"))
    assert cores.stay_near(GPU, FOUR, tmp_path) == ""
    assert bound == {}
