"""Computes which part of a batch a rank takes, without collectives, because ranks need it before they join."""

from orchestrator.training.distributed.ranks import Ranks
from orchestrator.training.options import Options


def data_part(options: Options, ranks: Ranks) -> tuple[int, int]:
    """Return the number of parts of a batch and this rank's part. Ranks that share a layer have the same part."""
    return max(1, ranks.world_size // options.tensor_ranks), ranks.rank // options.tensor_ranks
