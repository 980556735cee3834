"""Checkpoints for the user's own scripts: `from orchestrator.training import checkpoints`."""

from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT, MANIFEST, STATE, Manifest
from orchestrator.training.checkpoint.format import (
    Found,
    check,
    is_checkpoint,
    listing,
    load,
    newest,
    prune,
    read_manifest,
    save,
    write,
)

__all__ = [
    "COMMIT",
    "MANIFEST",
    "STATE",
    "Found",
    "Manifest",
    "check",
    "is_checkpoint",
    "listing",
    "load",
    "newest",
    "prune",
    "read_manifest",
    "save",
    "write",
]
