"""Detects whether all ranks share the folder of checkpoints, or whether each node has a folder of its own."""

from pathlib import Path

from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.distributed import group
from orchestrator.training.errors import CheckpointError


def is_shared(folder: Path) -> bool:
    """Return whether all ranks see rank 0's folder of checkpoints. All ranks must call this."""
    try:
        probe = Path(group.done_by_main(lambda: str(checkpoints.begin(folder, 0)), CheckpointError))
    except CheckpointError:
        return False
    seen = all(group.everyones(probe.is_dir()))
    if group.leads():
        checkpoints.discard(probe)
    return seen
