"""Marks of runs about which something may have to be sent. A mark is an empty file with the run's name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from orchestrator.errors import StoreError
from orchestrator.runs.store import RunDir

NOTIFY: Final = "notify"  # notifications
TRACK: Final = "track"  # trackers
MASKED_SECRETS: Final = "masked_secrets.json"  # in the run's folder: values to mask in messages; mode 0600


def mark(root: Path, folder: str, run: RunDir) -> None:
    """Mark the run, so that the supervisor watches it. Raises StoreError if that fails."""
    try:
        (root / folder).mkdir(mode=0o700, exist_ok=True)
        (root / folder / run.run_id).touch()
    except OSError as error:
        raise StoreError(f"{root / folder} can't be written: {error.strerror}") from error


def marked(root: Path, folder: str) -> list[RunDir]:
    """Return the marked runs, sorted by name. Marks of runs that were removed or never recorded are deleted."""
    try:
        names = [entry.name for entry in os.scandir(root / folder)]
    except FileNotFoundError:
        return []
    found = []
    for name in sorted(names):
        if (root / "runs" / name / "run.json").exists():
            found.append(RunDir(root / "runs" / name))
        elif not (root / "live" / name).exists():
            (root / folder / name).unlink(missing_ok=True)
    return found


def unmark(root: Path, folder: str, run: RunDir) -> None:
    """Remove the mark of a run. With the last mark, also remove the secrets that were kept for masking."""
    (root / folder / run.run_id).unlink(missing_ok=True)
    if not any((root / each / run.run_id).exists() for each in (NOTIFY, TRACK)):
        (run.path / MASKED_SECRETS).unlink(missing_ok=True)


def keep_secrets(root: Path, run: RunDir, secrets: Mapping[str, str]) -> None:
    """Store a run's secrets until its last mark is removed, so that messages about it can be masked."""
    if secrets and any((root / each / run.run_id).exists() for each in (NOTIFY, TRACK)):
        run.write(MASKED_SECRETS, dict(secrets), private=True)


def is_any_to_tell(root: Path) -> bool:
    """Tell whether the supervisor has anything to send about any run."""
    return any(marked(root, folder) for folder in (NOTIFY, TRACK))
