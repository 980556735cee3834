"""Schedules of the learning rate, clipped gradients, blocks that are computed twice."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from orchestrator.training import schedule
from orchestrator.training.activations import checkpoint_in_place
from orchestrator.training.data.sampler import Share
from orchestrator.training.errors import UserError

from .test_precision import strategy


def test_a_rate_rises_and_falls() -> None:
    assert [schedule.part("linear", step, 6, 2) for step in range(6)] == [0.5, 1, 1, 0.75, 0.5, 0.25]
    assert schedule.part("cosine", 4, 6, 2) == pytest.approx(0.5)
    assert schedule.part("cosine", 6, 6, 2) == 0
    assert {schedule.part("constant", step, 6) for step in range(6)} == {1.0}


@given(
    kind=st.sampled_from(["constant", "linear", "cosine"]), total=st.integers(1, 99), warmup=st.integers(0, 120)
)  # fmt: skip
def test_a_rate_is_a_part(kind: str, total: int, warmup: int) -> None:
    parts = [schedule.part(kind, step, total, warmup) for step in range(total)]
    assert all(0 < part <= 1 for part in parts)
    assert parts[warmup:] == sorted(parts[warmup:], reverse=True)


def test_the_rates_that_a_task_gives_its_weights_keep_their_proportion() -> None:
    made, _ = strategy("--lr", "0.5")
    made.optimizer.param_groups[0]["lr"] = 9.0  # as a checkpoint of another rate would
    made.set_rate(0.5)
    assert made.optimizer.param_groups[0]["lr"] == 0.25


def test_gradients_are_clipped_before_the_step() -> None:
    plain, data = strategy("--lr", "1")
    clipped, _ = strategy("--lr", "1", "--clip", "0.01")
    for each in (plain, clipped):
        before = [weight.detach().clone() for weight in each.model.parameters()]
        each.begin_step()
        each.backward(data, Share(torch.arange(6), 6))
        each.step()
        after = each.model.state_dict().values()
        moved = math.hypot(*(float((new - old).norm()) for new, old in zip(after, before, strict=True)))
        assert (moved == pytest.approx(0.01, rel=1e-3)) == (each is clipped)


def test_a_block_computes_twice_and_keeps_its_names() -> None:
    calls = []

    class Counted(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            calls.append(self.training)
            return super().forward(inputs)

    block = nn.Sequential(Counted(3, 3), nn.Tanh())
    model = nn.Sequential(block, nn.Linear(3, 1))
    names = list(model.state_dict())
    checkpoint_in_place(model.children())
    model(torch.ones(2, 3)).sum().backward()
    assert (len(calls), list(model.state_dict()), type(block).__name__) == (2, names, "Sequential")
    model.eval()(torch.ones(2, 3)).sum().backward()
    assert len(calls) == 3


def test_a_batch_is_not_counted_twice() -> None:
    with pytest.raises(UserError, match="its BatchNorm would count each batch twice"):
        checkpoint_in_place([nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))])
