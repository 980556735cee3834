"""The format of checkpoints: a folder for each step, with hashes of its files. A folder gets its final name by a
rename, once it is complete.

    checkpoints/step_00000123/state.pt        torch.save of a dict of tensors and plain values
                              manifest.json   step, epoch, world_size, time, metric; checksum and size of each file
                              COMMIT          the manifest's sha256, written last
                              __R_0.distcp, .metadata   weights that each rank wrote itself: see sharded.py

At any moment a step's folder is either complete or absent. An interrupted copy has no COMMIT, or its hashes do not
match. Files are hashed while they are written, and verified when they are read. A save does not read files back,
because that would test the page cache and not the disk. Apart from the weights of sharded.py, only global rank 0
writes into a folder, so no process group is needed.
"""

import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import torch

from orchestrator.protocol.checkpoints import checkpoint_dir
from orchestrator.protocol.checkpoints.checkpoint_dir import (
    COMMIT,
    FORMAT,
    FORMAT_OF_CHECKSUMS,
    MANIFEST,
    STATE,
    BadCheckpointError,
    Manifest,
    leftover_of,
    name_of,
    step_of,
    temporary_name,
)
from orchestrator.protocol.checkpoints.checksum import Checksum, NotInstalledError
from orchestrator.protocol.files import sync_folder, write_atomic
from orchestrator.protocol.metric import JobMetric
from orchestrator.training.checkpoint import hashing
from orchestrator.training.errors import CheckpointError


@dataclass(frozen=True)
class Found:
    """A checkpoint's folder and the result of a check. `problem` is None if the checkpoint is complete, otherwise a
    sentence.
    """

    path: Path
    step: int
    manifest: Manifest | None
    problem: str | None


def save(folder: Path, state: Mapping[str, Any], manifest: Manifest, *, keep: int = 3) -> Path:
    """Write a checkpoint, then delete all but the newest `keep` checkpoints. Raises CheckpointError if the checkpoint
    can't be written.
    """
    path = write(folder, state, manifest)
    prune(folder, path, keep)
    return path


def write(folder: Path, state: Mapping[str, Any], manifest: Manifest) -> Path:
    """Write and commit a checkpoint, which is on the disk when this returns. If this fails, no files of the checkpoint
    remain.
    """
    return commit(begin(folder, manifest.step), state, manifest)


def begin(folder: Path, step: int) -> Path:
    """Create the hidden folder in which a step's checkpoint is built. Pass it to `commit` or `discard`."""
    temp = folder / temporary_name("tmp", name_of(step))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temp.mkdir()
    except OSError as error:
        raise _unwritten(folder / name_of(step), error) from error
    return temp


def commit(temp: Path, state: Mapping[str, Any], manifest: Manifest) -> Path:
    """Write the state into the folder that `begin` returned, and rename the folder to its final name.

    The checkpoint is on the disk when this returns. If `commit` fails, the folder is removed. `manifest.files` maps the
    name of each file that is already in the folder to the file's checksum and size. These files must be on the disk.
    """
    path = temp.with_name(name_of(manifest.step))
    try:
        _fill(temp, state, manifest)
        _put_in_place(temp, path)
    except OSError as error:
        discard(temp)
        raise _unwritten(path, error) from error
    except BaseException:
        discard(temp)
        raise
    return path


def discard(temp: Path) -> None:
    """Remove the folder that `begin` returned, with its contents."""
    shutil.rmtree(temp, ignore_errors=True)


def _unwritten(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"The checkpoint {path} could not be written: {error.strerror or error}.")


def _fill(temp: Path, state: Mapping[str, Any], manifest: Manifest) -> None:
    """Write state, manifest and COMMIT, in this order."""
    entry = hashing.save_hashed(temp / STATE, dict(state))
    files = {STATE: entry, **manifest.files}
    values = asdict(manifest) | {
        "format": FORMAT if all("sha256" in each for each in files.values()) else FORMAT_OF_CHECKSUMS,
        "time": manifest.time or time.time(),
        "torch": torch.__version__,
        "files": files,
    }
    content = (json.dumps(values, indent=1) + "\n").encode()
    write_atomic(temp / MANIFEST, content)
    write_atomic(temp / COMMIT, f"{hashlib.sha256(content).hexdigest()}\n".encode())


def _put_in_place(temp: Path, path: Path) -> None:
    """Rename a complete temporary folder to its final name. An older checkpoint of the same step is replaced."""
    aside = path.with_name(temporary_name("old", path.name))
    # A folder can't replace a folder that is not empty, so the older checkpoint is renamed first. If the process dies
    # before the second rename, `clean` undoes the first.
    replaced = path.exists()
    if replaced:
        path.rename(aside)
    temp.rename(path)
    sync_folder(path.parent)
    if replaced:
        shutil.rmtree(aside, ignore_errors=True)


def prune(folder: Path, newest_path: Path, keep: int, keep_best: JobMetric | None = None) -> list[Path]:
    """Delete old checkpoints, up to the step of `newest_path`. Keep the newest `keep` of these and the best by the
    metric `keep_best`. Return the folders of the deleted checkpoints.

    Raises CheckpointError, and deletes nothing, if the checkpoint at `newest_path` is not complete. Only the sizes of
    its files are checked.
    """
    found = check(newest_path, verify=False)
    if found.problem:
        raise CheckpointError(f"{found.problem} Older checkpoints are kept.")
    names = [name for name in checkpoint_dir.step_folders(folder) if (step_of(name) or 0) <= found.step]
    best = checkpoint_dir.best_of(folder, names, keep_best)
    deleted = [folder / name for name in checkpoint_dir.surplus(names, keep, best)]
    for path in deleted:
        try:
            checkpoint_dir.delete(path)
        except OSError as error:
            raise CheckpointError(f"The old checkpoint {path} can't be deleted: {error.strerror}.") from error
    return deleted


def clean(folder: Path) -> list[Path]:
    """Remove unfinished folders of dead writers, and return their paths. Only the one process that writes into the
    folder may call this.
    """
    removed = []
    for path in sorted(folder.glob(".*-step_*")):
        found = leftover_of(path.name)
        if found is None or _lives(found.pid, found.host):
            continue
        whole = path.with_name(found.name)
        if found.kind == "old" and not whole.exists():
            path.rename(whole)
            continue
        shutil.rmtree(path, ignore_errors=True)
        removed.append(path)
    return removed


def _lives(pid: int, host: str) -> bool:
    """Return whether a process with this pid is running on this host. Writers on other hosts count as dead."""
    return host == socket.gethostname() and pid != os.getpid() and Path(f"/proc/{pid}").exists()


def listing(folder: Path) -> list[Found]:
    """Check all checkpoints of a folder and return them, oldest first. Every byte is read and hashed."""
    return [check(folder / name) for name in checkpoint_dir.step_folders(folder)]


def newest(folder: Path, *, run: str = "", report: Callable[[str], None] = print) -> Found | None:
    """Return the newest checkpoint whose hashes match. If `run` is given, only checkpoints of this run count.

    Damaged checkpoints are reported and skipped.
    """
    for name in reversed(checkpoint_dir.step_folders(folder)):
        found = check(folder / name, verify=False)
        if run and found.manifest is not None and found.manifest.run != run:
            continue  # a checkpoint of another run is not reported, even if it is damaged or can't be verified here
        found = found if found.problem else check(folder / name)
        if not found.problem:
            return found
        report(f"{found.problem} It is skipped.")
    return None


def is_checkpoint(path: Path) -> bool:
    """Return whether `path` is the folder of one checkpoint, and not a folder with several checkpoints."""
    return step_of(path.name) is not None or (path / MANIFEST).exists()


def check(path: Path, *, verify: bool = True) -> Found:
    """Check one checkpoint by its hashes or, without `verify`, by the sizes of its files. Damage is returned and not
    raised.

    Raises CheckpointError if this Python lacks the checkpoint's hash algorithm. If that counted as damage, an older
    checkpoint would be loaded.
    """
    try:
        found = checkpoint_dir.check(path, verify=verify)
    except NotInstalledError as error:
        raise _unverified(path, error) from error
    problem = None if found.manifest else _sentence(path, found.state, found.reason)
    return Found(path, found.step, found.manifest, problem)


def read_manifest(path: Path) -> Manifest:
    """Return a checkpoint's manifest. Raises CheckpointError if the manifest's hash is not the one in COMMIT."""
    try:
        return checkpoint_dir.read_manifest(path)[0]
    except BadCheckpointError as error:
        raise CheckpointError(_sentence(path, error.state, error.reason)) from error


def _unverified(path: Path, error: NotInstalledError) -> CheckpointError:
    return CheckpointError(f"The checkpoint {path} can't be verified: {error}.")


def _sentence(path: Path, state: checkpoint_dir.CheckpointState, reason: str) -> str:
    return f"The checkpoint {path} is {state}: {reason}."


def load(path: Path) -> tuple[dict[str, Any], Manifest]:
    """Load one checkpoint to the CPU. The bytes that were verified are exactly the bytes that are loaded.

    Raises CheckpointError if the checkpoint can't be read or is damaged.
    """
    with memory_file() as file:
        manifest = copy_verified(path, file)
        return decode(file, path), manifest


def memory_file() -> IO[bytes]:
    """Create an anonymous file in memory, which is freed when it is closed and no longer mapped."""
    return os.fdopen(os.memfd_create("checkpoint"), "w+b", buffering=0)


def copy_verified(path: Path, file: IO[bytes]) -> Manifest:
    """Copy a checkpoint's state into `file`, verify its hash, and return its manifest."""
    manifest = read_manifest(path)
    checksum = Checksum.of(manifest.files[STATE])
    try:
        with (path / STATE).open("rb", buffering=0) as source:
            is_right = hashing.copy_verified(source, file, checksum)
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} can't be read: {error.strerror}.") from error
    except NotInstalledError as error:
        raise _unverified(path, error) from error
    if not is_right:
        raise CheckpointError(f"The checkpoint {path} is corrupt: {STATE} does not match its checksum.")
    return manifest


def decode(file: IO[bytes], path: Path) -> dict[str, Any]:
    """Return the dict of tensors and plain values in a state file. Error messages name the checkpoint's `path`.

    The tensors are mapped from the file. They keep the file open, and need memory of their own only when they are
    written to.
    """
    try:
        state = torch.load(f"/proc/self/fd/{file.fileno()}", map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        # torch.load raises a dozen types, down to KeyError, for a file that torch.save did not write.
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise CheckpointError(f"The checkpoint {path} can't be loaded: {reason}.") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"The checkpoint {path} holds a {type(state).__name__} instead of a dict.")
    return state
