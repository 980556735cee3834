"""Detects whether all ranks share the folder of checkpoints, or whether each node has a folder of its own."""

from pathlib import Path

from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.distributed import group
from orchestrator.training.errors import CheckpointError


def is_shared(folder: Path) -> bool:
    """Return whether all ranks see rank 0's folder of checkpoints. All ranks must call this."""
    probe: Path | None = None
    if group.leads():
        try:
            probe = checkpoints.begin(folder, 0)
        except CheckpointError:
            probe = None
    path = group.from_main(None if probe is None else str(probe))
    seen = all(group.everyones(path is not None and Path(path).is_dir()))
    if probe is not None:
        checkpoints.discard(probe)
    return seen
