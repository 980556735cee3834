"""The training library. `python -m orchestrator.training` is its program, and scripts can import its parts
separately.
"""

from collections.abc import Callable
from typing import Any


def spawn(function: Callable[..., Any], nproc: int, *arguments: Any, start: str = "spawn") -> list[Any]:
    """Run `function(*arguments)` as `nproc` ranks on this machine, and return a list with the result of each rank. This
    is meant for notebooks.

    See orchestrator.training.distributed.spawn. The first call imports torch; importing this package does not.
    """
    from orchestrator.training.distributed import spawn as spawning

    return spawning.spawn(function, nproc, *arguments, start=start)
