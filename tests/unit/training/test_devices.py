"""Strategies for several devices of one process: what can be known of them without a GPU."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from orchestrator.training.data.loading import Resident, room
from orchestrator.training.data.sampler import ExactSampler, Share, pick
from orchestrator.training.data.sampler import cut as cut_share
from orchestrator.training.data.task import Task
from orchestrator.training.distributed.ranks import Ranks
from orchestrator.training.errors import UserError
from orchestrator.training.options import parse
from orchestrator.training.strategies import Setup, find
from orchestrator.training.strategies.dp_balanced import Parallel, parallel_loss, scatter
from orchestrator.training.strategies.layers import balance, cut
from orchestrator.training.strategies.model_parallel import Chain
from orchestrator.training.strategies.pipeline import _outline, parts_of

CPU = torch.device("cpu")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).double()


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=9), parts=st.integers(1, 9))
def test_layers_are_cut_about_evenly_and_the_last_piece_is_small(sizes: list[int], parts: int) -> None:
    parts = min(parts, len(sizes))
    ends = balance(sizes, parts)
    assert len(ends) == parts
    assert ends[-1] == len(sizes)
    groups = [sizes[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    assert all(groups)
    largest = max(map(sum, groups))
    assert largest >= max(sum(sizes) / parts, *sizes, 0)
    if parts == 2:
        cuts = {at: max(sum(sizes[:at]), sum(sizes[at:])) for at in range(1, len(sizes))}
        assert ends[0] == max(at for at, size in cuts.items() if size <= 1.05 * min(cuts.values()))


def test_pieces_together_have_the_names_and_the_outputs_of_the_whole() -> None:
    model, inputs = network(), torch.randn(4, 3).double()
    pieces = cut(model, 3)
    assert [name for piece in pieces for name in piece.state_dict()] == list(model.state_dict())
    assert torch.equal(Chain(pieces, [CPU] * 3)(inputs), model(inputs))


def test_what_can_not_be_cut_is_refused() -> None:
    with pytest.raises(UserError, match=r"A Linear can't be cut .* nn\.Sequential"):
        cut(nn.Linear(1, 1), 2)
    with pytest.raises(UserError, match="The model has 5 child modules, too few for 6 pieces"):
        cut(network(), 6)


@pytest.mark.parametrize("samples", [1, 2, 5, 8])
def test_a_parallel_criterion_gives_the_loss_and_the_gradients_of_one(samples: int) -> None:
    inputs = torch.randn(samples, 3).double()
    targets = inputs.sum(1, keepdim=True)
    one, several = network(), network()
    expected = nn.functional.mse_loss(one(inputs), targets)
    outputs = Parallel(several, [CPU] * 3)([inputs])
    assert [len(each) for each in outputs] == [len(part) for part in scatter(inputs, [CPU] * 3)]
    loss = parallel_loss(nn.functional.mse_loss, outputs, targets)
    torch.testing.assert_close(loss, expected)
    expected.backward()
    loss.backward()
    for mine, theirs in zip(several.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@given(length=st.integers(1, 200), wanted=st.integers(1, 16))
def test_a_batch_is_cut_into_equal_parts(length: int, wanted: int) -> None:
    count = parts_of(length, wanted)
    assert count <= wanted
    assert length % count == 0


def test_a_step_asks_the_device_for_no_value() -> None:
    """A tensor on the device `meta` has none: who asks, and would make a GPU be waited for, raises."""
    meta = torch.device("meta")
    options = parse(["--task", "t.py", "--clip", "1", "--accumulate", "2"])
    task = Task("t", data=lambda _: None, model=lambda _: nn.Linear(3, 1), loss=nn.functional.mse_loss)
    made = find("single")(Setup(options, task, Ranks(), meta, grouped=False), nn.Linear(3, 1))
    samples = Resident((torch.randn(7, 3), torch.randn(7, 1)), meta)
    order = ExactSampler(7, 4, rank=0, world_size=1, seed=0)
    taken = []
    for tensors, share in samples.batches(order.shares(0, samples.looked_up_on)):
        assert share.indices.device == meta
        made.begin_step()
        assert made.backward(tensors, share).device == meta
        made.step()
        taken.append(len(share.indices))
    assert taken == [4, 3]
    with pytest.raises(RuntimeError, match="meta"):
        made.backward(tensors, share).item()


def test_a_batch_that_is_whole_is_cut_and_not_looked_up() -> None:
    batch = (torch.arange(6),)
    parts = cut_share(Share(range(5), 12), 2)
    assert [pick(batch, part.indices)[0].tolist() for part in parts] == [[0, 1, 2], [3, 4]]
    assert pick(batch, range(5))[0].data_ptr() == batch[0].data_ptr()
    assert pick(batch, range(0))[0].tolist() == [0]


def test_samples_leave_the_gpu_to_the_model() -> None:
    assert room(20 << 30) == 1 << 30
    assert room(140 << 30) == 4 << 30


def test_the_outline_of_a_piece_holds_no_weight() -> None:
    piece = network()[:2]
    outline = _outline(piece)
    assert all(each.is_meta for each in (*outline.parameters(), *outline.buffers()))
    assert not any(each.is_meta for each in piece.parameters())
    assert outline(torch.empty(4, 3, device="meta", dtype=torch.float64)).shape == (4, 8)
