"""Computes which part of a batch a rank takes. No collective is used, because ranks need this before they join the
process group.
"""

from orchestrator.training.distributed.ranks import Ranks
from orchestrator.training.options import Options


def data_part(options: Options, ranks: Ranks) -> tuple[int, int]:
    """Return (number of parts of a batch, index of this rank's part). Ranks that share a layer have the same part."""
    return max(1, ranks.world_size // options.tensor_ranks), ranks.rank // options.tensor_ranks
