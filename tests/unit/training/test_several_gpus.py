"""What is done for the GPUs of a process, with stand-ins: streams waited for, generators kept, batches ahead, TF32."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from orchestrator.training import precision
from orchestrator.training.checkpoint import random_state, staging
from orchestrator.training.data import loading
from orchestrator.training.data.sampler import Share

CPU, FIRST, SECOND = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)


class OnGpu(torch.Tensor):
    """A tensor in host memory that takes itself for one of a GPU's."""

    on: torch.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.on


def on(device: torch.device, values: list[float]) -> OnGpu:
    tensor = torch.tensor(values).as_subclass(OnGpu)
    tensor.on = device
    return tensor


class Stream:
    """A stream that writes down what is asked of it."""

    def __init__(self, device: torch.device, said: list[str]) -> None:
        self.device, self.said = device, said

    def synchronize(self) -> None:
        self.said.append(f"waited for {self.device}")

    def wait_stream(self, other: "Stream") -> None:
        self.said.append("waits for the copy")


def test_a_copy_of_weights_on_several_gpus_waits_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`model-parallel` with `async_save`: a copy runs on the stream of the device that it comes from."""
    said: list[str] = []
    empty = torch.empty
    monkeypatch.setattr(staging.torch, "empty", lambda shape, dtype, pin_memory: empty(shape, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(device, said))
    copied = staging.Staging().copy({"model": {"a": on(FIRST, [1.0]), "b": on(SECOND, [2.0])}, "step": 3})
    assert sorted(said) == ["waited for cuda:0", "waited for cuda:1"]
    assert [float(copied["model"][name]) for name in "ab"] == [1.0, 2.0]


def test_every_gpus_generator_is_in_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout of `dp` and `model-parallel` draws on each GPU."""
    states = {FIRST: torch.tensor([1]), SECOND: torch.tensor([2])}
    monkeypatch.setattr(torch.cuda, "get_rng_state", states.__getitem__)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.__setitem__(device, state))
    saved = random_state.random_state(FIRST, SECOND)
    states[FIRST], states[SECOND] = torch.tensor([8]), torch.tensor([9])
    random_state.restore_random(saved, FIRST, SECOND)
    assert [int(state) for state in states.values()] == [1, 2]
    random_state.restore_random(random_state.random_state(CPU), FIRST)  # saved on a CPU: the GPU's goes on
    assert int(states[FIRST]) == 1


class Batch:
    """A tensor that writes down when it is copied, and who owns the copy."""

    def __init__(self, number: int, said: list[str]) -> None:
        self.number, self.said = number, said

    def to(self, device: torch.device, *, non_blocking: bool) -> "Batch":
        assert non_blocking
        self.said.append(f"copy {self.number}")
        return self

    def record_stream(self, stream: Stream) -> None:
        self.said.append(f"own {self.number}")


def test_a_gpu_is_given_the_next_batch_before_one_is_worked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    @contextmanager
    def stream(_: Stream) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(device, said))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(device, said))
    share = Share(torch.arange(1), 1)
    batches: Any = (([Batch(number, said)], share) for number in range(3))
    for (batch,), _ in loading.ahead(batches, FIRST):
        said.append(f"work {batch.number}")  # type: ignore[attr-defined]
    taken = [each for each in said if each != "waits for the copy"]
    assert taken == ["copy 0", "own 0", "copy 1", "work 0", "own 1", "copy 2", "work 1", "own 2", "work 2"]
    # The wait for a copy comes after the work on the batch before it, which it would hold up.
    assert said.index("waits for the copy", 3) > said.index("work 0")


@pytest.mark.parametrize(
    ("capability", "asked", "means"),
    [((8, 0), "auto", "tf32"), ((7, 5), "auto", "fp32"), ((9, 0), "fp32", "fp32"), ((9, 0), "bf16", "bf16")],
)
def test_float32_is_multiplied_in_tf32_where_the_gpu_has_it_unless_all_bits_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], asked: str, means: str
) -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    try:
        assert precision.resolve(asked, FIRST) == means
        precision.set_up(means, FIRST)
        assert torch.get_float32_matmul_precision() == ("highest" if means == "fp32" else "high")
        assert torch.backends.cudnn.allow_tf32 is (means != "fp32")
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
