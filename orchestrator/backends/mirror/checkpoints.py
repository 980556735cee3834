"""Copies orch's committed checkpoints from a run's machines, and determines their folder on the machines."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path

from orchestrator.backends.mirror.fetch import Wanted, fetch, read_small
from orchestrator.backends.mirror.policy import COMMITTED
from orchestrator.errors import BackendError
from orchestrator.protocol.checkpoints import checkpoint_dir
from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT, MANIFEST, is_committed, newest
from orchestrator.protocol.checkpoints.checksum import Checksum
from orchestrator.protocol.events import Collected
from orchestrator.protocol.metric import kept_by
from orchestrator.protocol.reading import MOST_RECORD, MOST_WORD, read_regular
from orchestrator.runs.store import RunDir, write_durably
from orchestrator.transport.machine import Machine

# -- names and folders


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest committed checkpoint of a folder on this machine; None if there is none."""
    name = newest(folder)
    return None if name is None else folder / name


def remote_checkpoints(run: RunDir) -> str:
    """Return the folder on node 0's machine in which rank 0 saves its checkpoints."""
    task = run.plan().first
    folder = task.checkpoint_dir
    return folder if folder.startswith(("/", "~")) or not folder else f"{task.code_dir}/{folder}"


# -- copies to this machine


def bring_newest(run: RunDir, machine: Machine, folder: str, steps: list[str], most: int | None = None) -> None:
    """Copy valid checkpoints among `steps`, newest first, until this machine has `most` of them (None: all). Then
    remove the oldest copies beyond the number in the job's `keep`.
    """
    here = 0
    for step in sorted(steps, reverse=True):
        target = run.path / "checkpoints" / Path(step).name
        if not is_committed(target):
            if not bring_checkpoint(machine, f"{folder}/{step}", target):
                continue
            run.append_event(Collected(int(target.name.removeprefix("step_"))))
        here += 1
        if here == most:
            break
    _keep_newest(run, is_all=most is None)


def _keep_newest(run: RunDir, *, is_all: bool) -> None:
    """Remove the oldest copies of checkpoints beyond the number in the job's `keep`. If `is_all` is True, all
    checkpoints are copied, so remove partial copies too.
    """
    folder = run.path / "checkpoints"
    here = checkpoint_dir.committed(folder)
    task = run.plan().first
    best = checkpoint_dir.best_of(folder, here, kept_by(task.checkpoint_best, task.checkpoint_better))
    surplus = checkpoint_dir.surplus(here, task.checkpoint_keep, best)
    torn = set(checkpoint_dir.step_folders(folder)) - set(here) if is_all else set()
    for name in (*surplus, *torn):
        checkpoint_dir.delete(folder / name)


def bring_checkpoint(machine: Machine, remote: str, target: Path) -> bool:
    """Copy one committed checkpoint, its COMMIT file last, and verify it. Return False if the checkpoint is damaged or
    was deleted meanwhile.
    """
    folder, _, name = remote.rpartition("/")
    commit, manifest = read_small(machine, folder, [f"{name}/{COMMIT}", f"{name}/{MANIFEST}"], MOST_RECORD)
    if commit is None or manifest is None or hashlib.sha256(manifest).hexdigest().encode() != commit.strip():
        return False
    files = _files(manifest, target.name)
    if files is None:
        return False
    with contextlib.suppress(OSError):
        if read_regular(target / COMMIT, MOST_WORD, target.parent) == commit:
            return True
    target.mkdir(parents=True, exist_ok=True)
    wanted = [Wanted(folder, f"{name}/{each}", f"{target}/{each}", *facts) for each, facts in files.items()]
    for landed in fetch(machine, wanted, COMMITTED, sum(each.size for each in wanted)):
        if landed.problem is not None:
            problem = landed.problem
            raise BackendError(
                f"{problem.filename or target}: {problem.strerror}", "make room on that disk"
            ) from problem
        if not landed.sha256:
            shutil.rmtree(target)
            return False
    write_durably(target / MANIFEST, manifest)
    write_durably(target / COMMIT, commit)
    return True


def _files(manifest: bytes, name: str) -> dict[str, tuple[int, int, Checksum]] | None:
    """Return a dict from the name of each file of a checkpoint to (size in bytes, 0, checksum), in which the 0 stands
    for an unknown time. Return None if the manifest is damaged or belongs to another checkpoint.
    """
    try:
        found = checkpoint_dir.manifest_of(manifest)
    except checkpoint_dir.BadCheckpointError:
        return None
    if checkpoint_dir.step_of(name) != found.step:
        return None
    return {each: (entry["bytes"], 0, Checksum.of(entry)) for each, entry in found.files.items()}
