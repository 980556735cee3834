"""Uses every function of `together`; says what it got."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from orchestrator.training import together
from orchestrator.training.distributed import group
from orchestrator.training.errors import UserError

if "alone" not in sys.argv:
    dist.init_process_group("gloo")
rank, ranks = together.rank(), together.world_size()
together.print("once", rank)
together.print("everywhere", rank, force=True)
together.print_all("I am", rank, "of", ranks)
together.barrier()
mean = (ranks - 1) / 2
assert together.reduce_mean(rank) == mean
own = torch.full((2, 3), rank, dtype=torch.int64)
averaged = together.reduce_mean(own.float())
assert averaged.eq(mean).all()
assert own.eq(rank).all()
# Rank r has r rows: none on rank 0, and another number on each.
rows = together.gather(torch.full((rank, 2), float(rank)))
assert rows.shape == (sum(range(ranks)), 2)
assert rows[:, 0].tolist() == [float(r) for r in range(ranks) for _ in range(r)]
assert together.gather_objects({"rank": rank}) == [{"rank": r} for r in range(ranks)]
assert together.broadcast_object(f"from {rank}") == "from 0"
mixed = {"a": (rank, None, 2.5), 3: ["x" * rank, {"s"}], "t": torch.full((rank,), rank)}
for number, got in enumerate(together.gather_objects(mixed)):
    assert (got["a"], got[3], got["t"].tolist()) == ((number, None, 2.5), ["x" * number, {"s"}], [number] * number)
refused = ""
try:
    together.broadcast_object(Path("/") if rank == 0 else None)
except UserError as error:
    refused = str(error)
assert ("tensors, numbers, text" in refused) is (ranks > 1)  # on every rank
taken = list(together.in_step(range(10 + 3 * rank)))
assert taken == list(range(10)), taken
assert list(together.in_step(range(4))) == [0, 1, 2, 3]
together.quiet_others()
print("quiet", rank)
print("forced", rank, force=True)
together.barrier()
group.leave()
