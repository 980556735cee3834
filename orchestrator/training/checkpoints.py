"""Checkpoints that can't be torn: a folder a step, hashed, and committed by its last file and by a rename.

    checkpoints/step_00000123/state.pt        torch.save of a dict of tensors and plain values
                              manifest.json   step, epoch, world_size, time, metric; sha256 and size of each file
                              COMMIT          the manifest's sha256, written last
                              __R_0.distcp, .metadata   where the ranks write weights themselves: see sharded.py

At any instant a step's folder is either whole or absent; a copy that stopped half way lacks COMMIT or fails its
hashes. Only one process, global rank 0, may write into a folder. No process group is needed.
"""

import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from orchestrator.training import hashing
from orchestrator.training.errors import CheckpointError

FORMAT = 1
STATE, MANIFEST, COMMIT = "state.pt", "manifest.json", "COMMIT"
_STEP_NAME = re.compile(r"step_(\d{8,})")
_TEMP_NAME = re.compile(r"\.(tmp|old|gone)-(step_\d{8,})-(\d+)-[0-9a-f]+@(.+)")


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself; `files` maps a name to its "sha256" and "bytes"; `time` is Unix seconds."""

    step: int
    epoch: int = 0
    world_size: int = 1
    time: float = 0.0
    metric: Mapping[str, float] = field(default_factory=dict)
    run: str = ""
    torch: str = ""
    format: int = FORMAT
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """One checkpoint folder and the verdict on it: `problem` is None where it verifies, else a sentence."""

    path: Path
    step: int
    manifest: Manifest | None
    problem: str | None


def name_of(step: int) -> str:
    """Return the folder name of a step."""
    return f"step_{step:08d}"


def save(folder: Path, state: Mapping[str, Any], manifest: Manifest, *, keep: int = 3) -> Path:
    """Write a checkpoint, verify it, then delete all but the newest `keep`; CheckpointError where the disk refuses."""
    path = write(folder, state, manifest)
    prune(folder, path, keep)
    return path


def write(folder: Path, state: Mapping[str, Any], manifest: Manifest) -> Path:
    """Write and commit a checkpoint, on the disk when this returns; on failure nothing of it stays behind."""
    return commit(begin(folder, manifest.step), state, manifest)


def begin(folder: Path, step: int) -> Path:
    """Make the hidden folder in which the checkpoint of a step is put together; give it to `commit` or `discard`."""
    temp = folder / _temp_name("tmp", name_of(step))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temp.mkdir()
    except OSError as error:
        raise _unwritten(folder / name_of(step), error) from error
    return temp


def commit(temp: Path, state: Mapping[str, Any], manifest: Manifest) -> Path:
    """Add the state to what `begin` made and put it in place, on the disk when this returns; discarded on failure.

    `manifest.files` names what was put there before, durably: name -> "sha256" and "bytes".
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
    """Remove what `begin` made and all that was put into it."""
    shutil.rmtree(temp, ignore_errors=True)


def _unwritten(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"The checkpoint {path} could not be written: {error.strerror or error}.")


def _fill(temp: Path, state: Mapping[str, Any], manifest: Manifest) -> None:
    """Write state, manifest and COMMIT, in this order."""
    sha256, size = hashing.save_hashed(temp / STATE, dict(state))
    values = asdict(manifest) | {
        "time": manifest.time or time.time(),
        "torch": torch.__version__,
        "files": {STATE: {"sha256": sha256, "bytes": size}, **manifest.files},
    }
    content = (json.dumps(values, indent=1) + "\n").encode()
    hashing.write_synced(temp / MANIFEST, content)
    hashing.write_synced(temp / "COMMIT.tmp", (hashing.sha256_of(content) + "\n").encode())
    (temp / "COMMIT.tmp").rename(temp / COMMIT)
    hashing.sync_folder(temp)


def _put_in_place(temp: Path, path: Path) -> None:
    """Rename a complete temporary folder to its name, over an older checkpoint of the same step if there is one."""
    aside = path.with_name(_temp_name("old", path.name))
    # A folder can't be renamed over a full one. `clean` undoes this where the process dies between the two.
    replaced = path.exists()
    if replaced:
        path.rename(aside)
    temp.rename(path)
    hashing.sync_folder(path.parent)
    if replaced:
        shutil.rmtree(aside, ignore_errors=True)


def _temp_name(kind: str, name: str) -> str:
    return f".{kind}-{name}-{os.getpid()}-{secrets.token_hex(4)}@{socket.gethostname()}"


def prune(folder: Path, newest_path: Path, keep: int) -> list[Path]:
    """Delete checkpoints older than the newest `keep`, but only if `newest_path` verifies by re-reading it.

    Returns what was deleted; CheckpointError where the new one does not verify, with all others untouched.
    """
    found = check(newest_path)
    if found.problem:
        raise CheckpointError(f"{found.problem} Older checkpoints are kept.")
    older = sorted((path for path in _step_folders(folder) if _step_of(path) < found.step), key=_step_of)
    deleted = older[: max(0, len(older) - (max(1, keep) - 1))]
    for path in deleted:
        # Aside first: a kill within rmtree must not leave half a checkpoint under its name.
        aside = path.with_name(_temp_name("gone", path.name))
        try:
            path.rename(aside)
        except OSError as error:
            raise CheckpointError(f"The old checkpoint {path} can't be deleted: {error.strerror}.") from error
        shutil.rmtree(aside, ignore_errors=True)
    return deleted


def clean(folder: Path) -> list[Path]:
    """Remove what a dead writer left behind (only the folder's one writer may call this); returns what was removed."""
    removed = []
    for path in sorted(folder.glob(".*-step_*")):
        match = _TEMP_NAME.fullmatch(path.name)
        if match is None or _lives(int(match[3]), match[4]):
            continue
        whole = path.with_name(match[2])
        if match[1] == "old" and not whole.exists():
            path.rename(whole)
            continue
        shutil.rmtree(path, ignore_errors=True)
        removed.append(path)
    return removed


def _lives(pid: int, host: str) -> bool:
    """Return whether another process of this host with that id runs; other hosts' writers count as dead."""
    return host == socket.gethostname() and pid != os.getpid() and Path(f"/proc/{pid}").exists()


def listing(folder: Path) -> list[Found]:
    """Return all checkpoints of a folder, oldest first, each with its verdict; reads and hashes every byte."""
    return [check(path) for path in sorted(_step_folders(folder), key=_step_of)]


def newest(folder: Path, *, run: str = "", report: Callable[[str], None] = print) -> Found | None:
    """Return the newest checkpoint that verifies (of `run` only, if given); others are reported and skipped."""
    for path in sorted(_step_folders(folder), key=_step_of, reverse=True):
        found = check(path)
        if found.problem:
            report(f"{found.problem} It is skipped.")
        elif not run or found.manifest is None or found.manifest.run == run:
            return found
    return None


def is_checkpoint(path: Path) -> bool:
    """Return whether `path` is one checkpoint's folder, rather than a folder of several."""
    return _STEP_NAME.fullmatch(path.name) is not None or (path / MANIFEST).exists()


def check(path: Path) -> Found:
    """Verify one checkpoint by reading all of it; never raises for what it finds there."""
    try:
        manifest = read_manifest(path)
        for name, entry in manifest.files.items():
            if (path / name).stat().st_size != entry["bytes"]:
                raise CheckpointError(f"The checkpoint {path} is torn: {name} has not the size that its manifest says.")
            if hashing.sha256_of_file(path / name) != entry["sha256"]:
                raise CheckpointError(f"The checkpoint {path} is corrupt: {name} does not match its sha256.")
    except CheckpointError as error:
        return Found(path, _step_of(path), None, str(error))
    except OSError as error:
        return Found(path, _step_of(path), None, f"The checkpoint {path} can't be read: {error.strerror}.")
    return Found(path, manifest.step, manifest, None)


def read_manifest(path: Path) -> Manifest:
    """Read a checkpoint's manifest and hold it against COMMIT; CheckpointError where they don't fit."""
    try:
        content = (path / MANIFEST).read_bytes()
        committed = (path / COMMIT).read_text("ascii").strip()
    except FileNotFoundError as error:
        raise CheckpointError(f"The checkpoint {path} is torn: it has no {Path(error.filename).name}.") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"The checkpoint {path} can't be read: {error}.") from error
    if committed != hashing.sha256_of(content):
        raise CheckpointError(f"The checkpoint {path} is corrupt: its manifest does not match its {COMMIT}.")
    try:
        manifest = Manifest(**json.loads(content))
        plain = all(
            Path(name).name == name and {"sha256", "bytes"} <= set(entry) for name, entry in manifest.files.items()
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"The checkpoint {path} has a manifest of another kind: {error}.") from error
    if manifest.format != FORMAT or not plain or STATE not in manifest.files:
        raise CheckpointError(
            f"The checkpoint {path} has format {manifest.format}; this version reads format {FORMAT}."
        )
    if _STEP_NAME.fullmatch(path.name) and _step_of(path) != manifest.step:
        raise CheckpointError(f"The checkpoint {path} is mixed up: its manifest is that of step {manifest.step}.")
    return manifest


def load(path: Path) -> tuple[dict[str, Any], Manifest]:
    """Load one checkpoint onto the CPU, verifying the very bytes it loads; CheckpointError for anything wrong."""
    content, manifest = read_verified(path)
    return decode(content, path), manifest


def read_verified(path: Path) -> tuple[bytes, Manifest]:
    """Return the bytes of a checkpoint's state, after their hash was found right, and its manifest."""
    manifest = read_manifest(path)
    try:
        content = (path / STATE).read_bytes()
    except OSError as error:
        raise CheckpointError(f"The checkpoint {path} can't be read: {error.strerror}.") from error
    if hashing.sha256_of(content) != manifest.files[STATE]["sha256"]:
        raise CheckpointError(f"The checkpoint {path} is corrupt: {STATE} does not match its sha256.")
    return content, manifest


def decode(content: bytes, path: Path) -> dict[str, Any]:
    """Turn a state's bytes into the dict that was saved, tensors and plain values only; `path` names it in errors."""
    try:
        state = torch.load(BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        # torch.load raises a dozen kinds, down to KeyError, for what is no file of torch.save.
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise CheckpointError(f"The checkpoint {path} can't be loaded: {reason}.") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"The checkpoint {path} holds a {type(state).__name__} instead of a dict.")
    return state


def _step_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if _STEP_NAME.fullmatch(path.name) and path.is_dir()]


def _step_of(path: Path) -> int:
    match = _STEP_NAME.fullmatch(path.name)
    return int(match[1]) if match else -1
