"""Which part of a batch is a rank's; without torch's collectives, for it is asked before the ranks join."""

from orchestrator.training.distributed.ranks import Ranks
from orchestrator.training.options import Options


def data_part(options: Options, ranks: Ranks) -> tuple[int, int]:
    """Return how many parts a batch has, and which of them is this rank's; ranks that share a layer have the same."""
    return max(1, ranks.world_size // options.tensor_ranks), ranks.rank // options.tensor_ranks
