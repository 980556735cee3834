"""fp16: refused where it can't be computed, and the scaling of gradients where it can."""

import pytest
import torch
from torch import nn

from orchestrator.training.data import Data
from orchestrator.training.errors import UserError
from orchestrator.training.group import Ranks
from orchestrator.training.options import parse
from orchestrator.training.sampler import Share
from orchestrator.training.strategies import Setup, find
from orchestrator.training.task import Task

CPU = torch.device("cpu")
INPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


def strategy(*arguments: str, inputs: torch.Tensor = INPUTS):
    """A strategy for a linear model of three inputs, and its data."""
    torch.manual_seed(0)
    options = parse(["--task", "t.py", *arguments])
    data = Data((inputs, inputs.sum(1, keepdim=True)), (inputs, inputs.sum(1, keepdim=True)), "sums")
    task = Task(
        "t", data=lambda _: data, model=lambda _: nn.Linear(3, 1), loss=nn.functional.mse_loss,
        optimizer=lambda parameters, options: torch.optim.SGD(parameters, lr=options.lr),
    )  # fmt: skip
    return find(options.strategy)(Setup(options, task, Ranks(), CPU, grouped=False), task.model(options)), data.train


@pytest.mark.parametrize("name", ["single", "ddp", "fsdp"])
def test_fp16_on_the_cpu_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(UserError, match=r"fp16 computes on GPUs only, .* the CPU: choose bf16"):
        strategy("--strategy", name, "--precision", "fp16")


def test_scaled_gradients_give_the_same_step_and_an_overflow_gives_none() -> None:
    plain, data = strategy()
    scaled, _ = strategy()
    scaled.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for each in (plain, scaled):
        for _ in range(3):
            each.optimizer.zero_grad()
            each.backward(data, Share(torch.arange(6), 6))
            each.step()
    assert torch.equal(plain.model.weight, scaled.model.weight)  # a power of two rounds nothing
    before = scaled.model.weight.detach().clone()
    scaled.backward((INPUTS.mul(1e38), data[1]), Share(torch.arange(6), 6))
    scaled.step()
    assert torch.equal(scaled.model.weight, before)
    assert scaled.scaler.get_scale() == 2.0**9


@pytest.mark.skipif(not torch.cuda.is_available(), reason="fp16 needs a GPU")
def test_fp16_trains_on_a_gpu() -> None:
    options = parse(["--task", "t.py", "--precision", "fp16", "--strategy", "single"])
    gpu = torch.device("cuda", 0)
    task = Task("t", data=lambda _: None, model=lambda _: nn.Linear(3, 1), loss=nn.functional.mse_loss)
    made = find("single")(Setup(options, task, Ranks(), gpu, grouped=False), nn.Linear(3, 1))
    data = (INPUTS.to(gpu), INPUTS.sum(1, keepdim=True).to(gpu))
    losses = []
    for _ in range(50):
        made.optimizer.zero_grad()
        losses.append(float(made.backward(data, Share(torch.arange(6), 6))))
        made.step()
    assert made.scaler.is_enabled()
    assert losses[-1] < losses[0]


def test_what_ddp_can_not_do_together_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match="both --static-graph and --accumulate"):
        strategy("--static-graph", "--accumulate", "2")


def test_weights_that_are_no_numbers_are_noticed() -> None:
    made, _ = strategy()
    assert made.is_finite()
    made.model.bias.data.fill_(float("inf"))
    assert not made.is_finite()
