"""Writes and looks for cancel.json, which records that a run was cancelled. The file is written before any process is
signalled, and also on a full disk.
"""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path
from typing import Any, Final

from orchestrator.protocol.files import overwrite_line, write_json

ROOM: Final = 512  # bytes of each reserve; a cancel's record is smaller


def keep_room_for_cancel(folder: str | Path) -> None:
    """Write a reserve file, which can be turned into cancel.json if the disk later has no free space or inode.

    `folder` is the run's folder on the submitting machine, or a node's folder on the node. So each disk has its own
    reserve.
    """
    with contextlib.suppress(OSError):
        overwrite_line(f"{folder}/reserve.json", {}, ROOM)


def is_cancelled(run_dir: str | Path) -> bool:
    """Return whether a cancel of the run is recorded."""
    return os.path.exists(f"{run_dir}/cancel.json")


def record_cancel(run_dir: str | Path, cancel: Any, *, durable: bool = True) -> None:
    """Write cancel.json in the run's folder. Raises OSError if the disk has no room and there is no reserve file."""
    path = f"{run_dir}/cancel.json"
    try:
        write_json(path, cancel, durable=durable)
    except OSError:
        reserves = sorted(glob.glob(f"{glob.escape(str(run_dir))}/nodes/*/reserve.json"))
        if not any(_written_into(reserve, cancel, path) for reserve in [f"{run_dir}/reserve.json", *reserves, path]):
            raise


def _written_into(reserve: str, cancel: Any, path: str) -> bool:
    """Overwrite a reserve file with the cancel's record and rename it to `path`. Return False if that fails."""
    try:
        # this file is an earlier cancel.json and not a reserve; another file may have room
        if os.stat(reserve).st_size != ROOM:
            return False
        overwrite_line(reserve, cancel, ROOM)
        os.replace(reserve, path)
    except (OSError, ValueError):
        return False
    return True
