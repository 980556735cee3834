"""Removes the files that killed processes left in the state folder. Their names and ages identify these files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.backends.base import Finding
from orchestrator.backends.settings import CACHE_DAYS
from orchestrator.node.environments.unused import find_old, remove
from orchestrator.protocol.files import has_lost_its_writer, is_being_written, locked_if_free, remove_tree
from orchestrator.protocol.reading import MOST_RECORD, read_json
from orchestrator.runs.start_lock import STARTING
from orchestrator.runs.store import REMOVED_PREFIX, delete_folder

SETTLED_SECONDS: Final = 60.0  # younger files may belong to a submission in progress


def collect_files(root: Path, *, dry_run: bool) -> Iterator[Finding]:
    """Remove the files and folders that killed processes left. With `dry_run`, only list them."""
    done = "would be removed" if dry_run else "removed"
    for kind, path, why in _leftovers(root):
        try:
            if not dry_run:
                _remove(root, path)
            yield Finding(kind, str(path), done, why)
        except OSError as error:
            yield Finding(kind, str(path), "kept", f"{why}; {error.strerror}")
    yield from _folders_without_record(root)
    yield from _partial_inputs(root, dry_run=dry_run)
    yield from _cache(root, dry_run=dry_run)


def _remove(root: Path, path: Path) -> None:
    """Remove a file, link or folder.

    If a run's own folder is a link, its target is removed too, because the link is orch's. Other links are not
    followed, because a run's program may have made them, and they may lead to any folder.
    """
    if path.parent == root / "runs":
        delete_folder(path)
    elif path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink()


def _leftovers(root: Path) -> Iterator[tuple[str, Path, str]]:
    for path in _children(root / "live"):
        if _is_settled(path) and not (root / "runs" / path.name / "run.json").exists():
            yield "mark", path, "a live mark without a run"
    for folder in _children(root / "runs"):
        if folder.name.startswith(REMOVED_PREFIX):
            if _is_abandoned(folder):
                yield "folder", folder, "its removal was cut off"
            continue
        if _is_settled(folder) and not (folder / "run.json").exists() and _is_bare(folder):
            yield "folder", folder, "a submit was killed before it had recorded its run"
            continue
        for path in (*folder.glob(".*.tmp"), *folder.glob("nodes/*/*.tmp")):
            if _is_abandoned(path):
                yield "file", path, "its writer was killed"
        if (folder / "verdict.json").exists():
            for path in (*folder.glob("checkpoints/.tmp-step_*"), *folder.glob("checkpoints/.gone-step_*")):
                yield "folder", path, "a checkpoint that was never finished, or already deleted"
    for path in root.glob(".*.tmp"):
        if _is_abandoned(path):
            yield "file", path, "its writer was killed"


def _is_bare(folder: Path) -> bool:
    """Return True if a run's folder has nothing of value: only folders, its start lock and temporary files."""
    return all(
        path.name in ("nodes", STARTING) or (path.name.startswith(".") and path.name.endswith(".tmp"))
        for path in folder.rglob("*")
    )  # fmt: skip


def _folders_without_record(root: Path) -> Iterator[Finding]:
    for folder in _children(root / "runs"):
        if folder.name.startswith("."):
            continue
        if folder.is_dir() and not (folder / "run.json").exists() and not _is_bare(folder):
            yield Finding(
                "folder", str(folder), "kept", f"its record is lost; look at its files before orch rm {folder.name}"
            )


def _partial_inputs(root: Path, *, dry_run: bool) -> Iterator[Finding]:
    """Remove inputs whose download was interrupted. A download in progress holds a lock, and is kept."""
    for path in sorted((root / "inputs").glob("*.partial")):
        with contextlib.suppress(OSError), locked_if_free(path.with_suffix(".lock")) as is_free:
            if not is_free:
                continue
            if not dry_run:
                path.unlink()
            yield Finding("file", str(path), "would be removed" if dry_run else "removed", "an input half fetched")


def _cache(root: Path, *, dry_run: bool) -> Iterator[Finding]:
    """Remove environments and wheels that were unused for CACHE_DAYS days. Wheels of known runs are kept, so that
    the runs can be repeated.
    """
    oldest, why = time.time() - CACHE_DAYS * 86_400, f"unused for {CACHE_DAYS} days"
    for old in find_old(str(root / "cache"), oldest, _wheels_of_runs(root)):
        try:
            if not dry_run and not remove(old):
                yield Finding(old.kind, old.path, "kept", "a run is using it")
                continue
            done = "would be removed" if dry_run else "removed"
            yield Finding(old.kind, old.path, done, "its build was cut off" if old.kind == "folder" else why)
        except OSError as error:
            yield Finding(old.kind, old.path, "kept", f"{why}; {error.strerror}")


def _wheels_of_runs(root: Path) -> set[str]:
    found = set()
    for path in root.glob("runs/*/packages.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            found |= {each["sha256"] for rows in read_json(path, MOST_RECORD).values() for each in rows}
    return found


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _is_abandoned(path: Path) -> bool:
    """Return True if the process that wrote a temporary file has ended. The file's name contains the pid. If the name
    has no pid, the age of the file decides.
    """
    return has_lost_its_writer(path) or (_is_settled(path) and not is_being_written(path))


def _is_settled(path: Path) -> bool:
    """Return True if a file is so old that no process can still be writing it."""
    try:
        return time.time() - path.stat().st_mtime > SETTLED_SECONDS
    except OSError:
        return False
