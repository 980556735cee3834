"""Training with torch: the entrypoint `python -m orchestrator.training` and its parts, importable one by one."""

from collections.abc import Callable
from typing import Any


def spawn(function: Callable[..., Any], nproc: int, *arguments: Any, start: str = "spawn") -> list[Any]:
    """Run `function(*arguments)` as `nproc` ranks on this machine and return their results by rank: for notebooks.

    See orchestrator.training.distributed.spawn; torch is imported by the first call, not with this package.
    """
    from orchestrator.training.distributed import spawn as spawning  # noqa: PLC0415

    return spawning.spawn(function, nproc, *arguments, start=start)
