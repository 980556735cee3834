"""Reads the rank of this process and the number of ranks from torchrun's environment variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.training.errors import UserError


@dataclass(frozen=True)
class Ranks:
    """The rank of this process in the run and on its node, and the numbers of ranks. `grouped` tells whether RANK is
    set.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    grouped: bool = False


def read_ranks(environ: Mapping[str, str] = os.environ) -> Ranks:
    """Read RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE. Raises UserError if they contradict each other."""
    world_size = whole_number(environ, "WORLD_SIZE", 1)
    ranks = Ranks(
        rank=whole_number(environ, "RANK", 0),
        local_rank=whole_number(environ, "LOCAL_RANK", 0),
        world_size=world_size,
        local_world_size=whole_number(environ, "LOCAL_WORLD_SIZE", 1),
        grouped="RANK" in environ,
    )
    if not 0 <= ranks.rank < world_size:
        raise UserError(f"RANK={ranks.rank} does not fit WORLD_SIZE={world_size}: ranks count from 0.")
    if world_size > 1 and not ranks.grouped:
        raise UserError(f"WORLD_SIZE={world_size} is set but RANK is not: start the ranks with orch or torchrun.")
    return ranks


def whole_number(environ: Mapping[str, str], name: str, default: int) -> int:
    """Return the number in a variable, or the default if the variable is unset or empty. Raises UserError if it is
    not a number.
    """
    try:
        return int(environ.get(name) or default)
    except ValueError:
        raise UserError(f"{name} must be a whole number, not {environ[name]!r}.") from None
