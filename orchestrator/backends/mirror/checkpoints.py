"""Copies orch's committed checkpoints from a run's machines, and determines their folder on the machines."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

from orchestrator.backends.mirror.fetch import Landed, Wanted, fetch, read_small
from orchestrator.backends.mirror.policy import COMMITTED, Policy
from orchestrator.errors import BackendError
from orchestrator.protocol.checkpoints import checkpoint_dir
from orchestrator.protocol.checkpoints.checkpoint_dir import (
    COMMIT,
    MANIFEST,
    BadCheckpointError,
    CheckpointState,
    is_committed,
    newest,
)
from orchestrator.protocol.checkpoints.checksum import Algorithm, Checksum, NotInstalledError
from orchestrator.protocol.events import Collected
from orchestrator.protocol.files import sync_folder
from orchestrator.protocol.metric import kept_by
from orchestrator.protocol.reading import MOST_RECORD
from orchestrator.protocol.writing import Folder, named_folder
from orchestrator.runs.store import RunDir
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
        number = checkpoint_dir.step_of(target.name)
        if not is_committed(target) and number is not None:
            try:
                bring_checkpoint(machine, f"{folder}/{step}", target)
            except BadCheckpointError:
                continue
            run.append_event(Collected(number))
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


def bring_checkpoint(
    machine: Machine, remote: str, target: str | Path, policy: Policy = COMMITTED, above: Folder | None = None
) -> list[Landed]:
    """Copy one committed checkpoint, its COMMIT file last, and verify it. Files that are already here are kept. The
    path `target` is relative to the open folder `above`, if it is given.

    Raises BadCheckpointError if the checkpoint is damaged or was deleted meanwhile. Raises BackendError if the machine
    can't be reached, or if a file can't be written or verified.
    """
    folder, _, name = remote.rpartition("/")
    manifest, commit = read_small(machine, folder, [f"{name}/{MANIFEST}", f"{name}/{COMMIT}"], MOST_RECORD)
    if manifest is None or commit is None:
        raise BadCheckpointError(CheckpointState.INCOMPLETE, "it was removed while it was copied")
    found, digest = checkpoint_dir.verified(name, manifest, commit)
    files = {each: (int(entry["bytes"]), Checksum.of(entry)) for each, entry in found.files.items()}
    files[MANIFEST] = len(manifest), Checksum(Algorithm.SHA256, digest)
    files[COMMIT] = len(commit), Checksum(Algorithm.SHA256, hashlib.sha256(commit).hexdigest())
    try:
        with named_folder(target) if above is None else above.below(str(target)) as into:
            wanted = [
                Wanted(folder, f"{name}/{each}", each, size, checksum=checksum, folder=into)
                for each, (size, checksum) in files.items()
            ]
            return _complete(machine, wanted, into, policy)
    except NotInstalledError as error:
        raise BackendError(f"{target} can't be verified: {error}") from error
    except OSError as error:
        hint = "make room on that disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise BackendError(f"{error.filename or target}: {error.strerror}", hint) from error


def _complete(machine: Machine, wanted: list[Wanted], target: Folder, policy: Policy) -> list[Landed]:
    """Fetch those files of a checkpoint that the folder `target` lacks."""
    here, lacking = list[Wanted](), list[Wanted]()
    for each in wanted:
        (here if _is_here(each) else lacking).append(each)
    if lacking:
        target.remove(COMMIT)  # a save of this step that is about to be overwritten
    result = [Landed(each, is_known=True) for each in here]
    while lacking:
        for landed in fetch(machine, tuple(lacking), policy, sum(each.size for each in lacking)):
            if landed.problem is not None:
                raise landed.problem
            if landed.sha256:
                lacking.remove(landed.wanted)
                result.append(landed)
            elif landed.is_continued:  # the bytes of an interrupted copy were wrong, and the file is fetched again
                break
            else:
                target.clear()
                name = os.path.basename(landed.wanted.path)
                raise BadCheckpointError(CheckpointState.CORRUPT, f"{name} does not match its checksum")
    sync_folder(".", target.descriptor)
    return result


def _is_here(wanted: Wanted) -> bool:
    assert wanted.checksum is not None
    assert wanted.folder is not None
    here = wanted.folder.own_file(wanted.target)
    return here is not None and wanted.checksum.is_of(here)
