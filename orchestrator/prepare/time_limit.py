"""Warns if a job has a time limit and its script seems to save no checkpoint. Only the source code is searched."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # submitting cached documents must not load pydantic
    from orchestrator.specs.job import Job
    from orchestrator.specs.profiles import AnyProfile

MOST_FILES: Final = 200  # if a code folder has more Python files, nothing is checked
MOST_BYTES: Final = 1 << 20
# Any of these words may write a checkpoint. A program without them is known to write none.
_WRITES: Final = re.compile(
    rb"save|checkpoint|ckpt|dump|open\(|write_|to_csv|to_parquet|orchestrator\.training|trainer|lightning|\.fit\(", re.I
)
_NOT_READ: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


def note_on_time_limit(job: Job, profile: AnyProfile, code_dir: Path) -> str:
    """Return a note that the script will lose its work at the time limit; empty if the script may save a checkpoint."""
    limit = job.resources.time or getattr(profile, "time", None)
    if limit is None or job.script is None or _may_save(code_dir / job.script, code_dir):
        return ""
    return (
        f"note: {job.script} saves no checkpoint, so all its work is lost at its time limit "
        f"({timedelta(seconds=limit)}); raise `time`, or see docs/training.md#your-own-script"
    )


def _may_save(script: Path, code_dir: Path) -> bool:
    sources = [script]
    for path in _modules(code_dir):
        sources.append(path)
        if len(sources) > MOST_FILES:
            return True
    try:
        return any(path.stat().st_size > MOST_BYTES or _WRITES.search(path.read_bytes()) for path in sources)
    except OSError:
        return True


def _modules(code_dir: Path) -> Iterator[Path]:
    for above, folders, names in os.walk(code_dir):
        is_environment = "pyvenv.cfg" in names
        folders[:] = [] if is_environment else [each for each in folders if each[0] != "." and each not in _NOT_READ]
        if not is_environment:
            yield from (Path(above, name) for name in names if name.endswith(".py"))
