"""Every sample exactly once an epoch, whatever the number of ranks."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.training.data.sampler import ExactSampler, PaddedSampler, split
from orchestrator.training.options import Options
from orchestrator.training.progress.position import Position, total_steps


def shares_of(samples: int, batch: int, world_size: int, *, epoch: int = 0, offset: int = 0):
    """Return, for each global batch, the shares of all ranks."""
    samplers = [ExactSampler(samples, batch, rank=rank, world_size=world_size, seed=3) for rank in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return list(zip(*(sampler.shares(offset) for sampler in samplers), strict=True))


@given(samples=st.integers(1, 300), batch=st.integers(1, 60), world_size=st.integers(1, 9), epoch=st.integers(0, 5))
def test_the_ranks_partition_an_epoch(samples, batch, world_size, epoch):
    batches = shares_of(samples, batch, world_size, epoch=epoch)
    taken = torch.cat([share.indices for shares in batches for share in shares])
    assert sorted(taken.tolist()) == list(range(samples))
    for shares in batches:
        assert {share.count for share in shares} == {sum(len(share.indices) for share in shares)}
        sizes = [len(share.indices) for share in shares]
        assert sizes == sorted(sizes, reverse=True)
        assert max(sizes) - min(sizes) <= 1


@given(samples=st.integers(1, 200), batch=st.integers(1, 50), data=st.data())
def test_the_order_does_not_depend_on_the_ranks_nor_on_a_resume(samples, batch, data):
    def order(world_size: int, offset: int = 0) -> list[int]:
        batches = shares_of(samples, batch, world_size, offset=offset)
        return torch.cat([share.indices for shares in batches for share in shares]).tolist()

    offset = data.draw(st.integers(0, (samples - 1) // batch)) * batch
    whole = order(1)
    assert order(data.draw(st.integers(2, 7))) == whole
    assert order(data.draw(st.integers(1, 7)), offset) == whole[offset:]


@given(count=st.integers(0, 1000), world_size=st.integers(1, 50))
def test_a_split_is_without_gap_or_overlap(count, world_size):
    taken = [index for rank in range(world_size) for index in range(count)[split(count, world_size, rank)]]
    assert taken == list(range(count))


def test_epochs_differ_and_repeat():
    first, again, other = (shares_of(50, 50, 1, epoch=epoch)[0][0].indices.tolist() for epoch in (1, 1, 2))
    assert first == again != other


def test_the_padded_sampler_is_torchs_own():
    samplers = [PaddedSampler(10, 6, rank=rank, world_size=3, seed=0) for rank in range(3)]
    batches = list(zip(*(sampler.shares() for sampler in samplers), strict=True))
    taken = [index for shares in batches for share in shares for index in share.indices.tolist()]
    assert len(taken) == samplers[0].samples == 12
    assert set(taken) == set(range(10))


@given(samples=st.integers(1, 100), batch=st.integers(1, 40), epochs=st.integers(1, 4), data=st.data())
def test_the_total_is_where_stepping_ends(samples, batch, epochs, data):
    values = dict.fromkeys(Options.__dataclass_fields__)
    options = Options(**{**values, "epochs": epochs, "global_batch": batch})
    total = total_steps(options, Position(), samples)
    position = Position()
    stop_at = data.draw(st.integers(0, total))
    while position.epoch < epochs:
        if position.step == stop_at:
            assert total_steps(options, position, samples) == total
        position = position.after(min(batch, samples - position.offset), samples)
    assert position == Position(total, epochs, 0, epochs * samples)
