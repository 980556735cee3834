"""Which device a rank computes on, and what ranks that have chosen differently are told."""

from dataclasses import replace

import pytest
import torch

from orchestrator.training.distributed.devices import BOTH, Gpus, choose, look
from orchestrator.training.distributed.meeting import Answer, refusal
from orchestrator.training.distributed.ranks import Ranks
from orchestrator.training.errors import UserError

NCCL = torch.distributed.is_nccl_available()


def rank(local: int, of: int) -> Ranks:
    return Ranks(rank=local, local_rank=local, world_size=of, local_world_size=of, grouped=True)


@pytest.mark.skipif(not NCCL, reason="this torch is built without NCCL")
@pytest.mark.parametrize(
    ("gpus", "ranks", "wanted", "on", "expected"),
    [
        (Gpus(8, 8), rank(3, 8), "auto", "auto", (BOTH, "cuda:3")),
        (Gpus(1, 8), rank(3, 8), "auto", "auto", (BOTH, "cuda:0")),  # each was given one of its own
        (Gpus(0, 0), rank(3, 8), "auto", "auto", ("gloo", "cpu")),
        (Gpus(8, 8), rank(3, 8), "auto", "cpu", ("gloo", "cpu")),
        (Gpus(0, 8, "the driver is too old"), rank(3, 8), "auto", "cpu", ("gloo", "cpu")),
        (Gpus(8, 8), rank(3, 8), "gloo", "auto", ("gloo", "cuda:3")),
        (Gpus(1, 1), rank(3, 8), "gloo", "auto", ("gloo", "cpu")),
        (Gpus(2, 2), rank(3, 8), "gloo", "cuda", ("gloo", "cuda:1")),  # by gloo, ranks may share one
        (Gpus(1, 1), Ranks(), "auto", "auto", ("", "cuda:0")),
    ],
)
def test_a_rank_computes_on(gpus: Gpus, ranks: Ranks, wanted: str, on: str, expected: tuple[str, str]) -> None:
    choice = choose(wanted, ranks, on, gpus)
    assert (choice.backend, str(choice.device)) == expected


@pytest.mark.parametrize(
    ("gpus", "wanted", "on", "sentence"),
    [
        (
            Gpus(0, 8, "The NVIDIA driver on your system is too old"), "auto", "auto",
            r"has 8 GPUs, .* one of 8 on it, sees 0 \(The NVIDIA driver .* too old\): repair that, or use --device cpu",
        ),
        (Gpus(1, 1), "auto", "auto", "has 1 GPU, .* sees 1: repair that, or start 1 per node, or use --device cpu"),
        (Gpus(0, 0), "auto", "cuda", "no GPU, and --device cuda needs one: leave --device out"),
        (Gpus(8, 8), "nccl", "cpu", "nccl backend needs GPUs, and --device cpu excludes them: choose ORCH_BACKEND"),
        (Gpus(4, 4), "nccl", "auto", "needs a GPU for each of the 8 ranks .* sees 4: choose ORCH_BACKEND=gloo and --d"),
    ],
)  # fmt: skip
def test_a_gpu_that_is_missing_is_a_sentence(gpus: Gpus, wanted: str, on: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        choose(wanted, rank(0, 8), on, gpus)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_whose_gpus_torch_can_not_use_says_why(tmp_path) -> None:
    assert look({}, str(tmp_path)) == Gpus(0, 0)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    found = look({}, str(tmp_path))
    assert (found.visible, found.here) == (0, 2)
    assert "NVIDIA" in found.problem or "CUDA" in found.problem
    assert look({"CUDA_VISIBLE_DEVICES": ""}, str(tmp_path)).problem == "CUDA_VISIBLE_DEVICES hides them"


def test_each_rank_takes_its_own_instance_of_a_divided_card(tmp_path) -> None:
    (tmp_path / "nvidia0").touch()
    found = look({"ORCH_GPUS": "MIG-a,MIG-b,MIG-c"}, str(tmp_path))
    assert found.here == 3
    assert choose("auto", rank(2, 3), "auto", replace(found, visible=1, problem="")).device == torch.device("cuda", 0)


ON_GPU = Answer("b", "nccl", "cuda", "8 GPUs visible")


def test_the_odd_rank_is_named() -> None:
    assert refusal([ON_GPU] * 3) == ""
    odd = refusal([ON_GPU, ON_GPU, Answer("c", "gloo", "cpu", "0 GPUs visible"), ON_GPU])
    assert odd.startswith("Rank 2 on c would compute on cpu by gloo (0 GPUs visible), and 3 of 4 ranks on cuda by nccl")
    assert refusal([ON_GPU, Answer("c", problem="It is broken.")]) == "Rank 1 on c can't train: It is broken."


def test_two_ranks_on_one_gpu_are_named() -> None:
    one, other = (Answer("b", "nccl", "cuda", gpu=gpu) for gpu in ("GPU-1", "GPU-2"))
    assert refusal([one, other]) == ""
    assert refusal([one, other, one]).startswith("Ranks 0 and 2 on b would share one GPU (GPU-1), which NCCL refuses")
