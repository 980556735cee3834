"""Computes which part of a batch a rank takes. Ranks need this before they join, so no collective is used."""

from orchestrator.training.distributed.ranks import Ranks
from orchestrator.training.options import Options


def data_part(options: Options, ranks: Ranks) -> tuple[int, int]:
    """Return the number of parts of a batch, and the number of this rank's part. Ranks of one layer share a part."""
    return max(1, ranks.world_size // options.tensor_ranks), ranks.rank // options.tensor_ranks
