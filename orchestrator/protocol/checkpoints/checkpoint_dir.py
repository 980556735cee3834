"""Reads a folder of checkpoints, for rank 0, the agents and the submitting machine.

    FOLDER/step_00000123/state.pt        what torch saved
                         manifest.json   Manifest: the step, and the checksum and size of each file
                         COMMIT          the manifest's sha256, written last
                         __R_0.distcp, .metadata   weights that the ranks wrote in parts
    FOLDER/.tmp-step_..., .old-, .gone-  a writer's temporary folders: being written, replaced, deleted

Most readers only check whether a checkpoint has COMMIT. `check` compares each file with the manifest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.protocol.checkpoints.checksum import Checksum
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.metric import Better, JobMetric, better_of
from orchestrator.protocol.reading import MOST_RECORD, MOST_WORD, read_regular
from orchestrator.protocol.str_enum import StrEnum

FORMAT, FORMAT_OF_CHECKSUMS = 1, 2
"""The formats of a manifest: 1 has only sha256 hashes, and every version of orch reads it. 2 has any checksums."""
STATE, MANIFEST, COMMIT = "state.pt", "manifest.json", "COMMIT"
_STEP_NAME = re.compile(r"step_(\d{8,})")
_TEMPORARY_NAME = re.compile(r"\.(tmp|old|gone)-(step_\d{8,})-(\d+)-[0-9a-f]+@(.+)")
_PLAIN: dict[str, tuple[type, ...]] = {
    "epoch": (int,),
    "world_size": (int,),
    "time": (int, float),
    "run": (str,),
    "torch": (str,),
}


# -- by names only


def name_of(step: int) -> str:
    """Return the name of a step's folder."""
    return f"step_{step:08d}"


def step_of(name: str) -> int | None:
    """Return the step in a folder's name, or None if the name is not that of a checkpoint."""
    match = _STEP_NAME.fullmatch(name)
    return int(match[1]) if match else None


def step_folders(folder: str | Path) -> list[str]:
    """Return the names of all checkpoints in a folder, complete or not, sorted by step. Return an empty list if the
    folder can't be read.
    """
    try:
        with os.scandir(folder) as entries:
            found = {entry.name: step_of(entry.name) for entry in entries if entry.is_dir()}
    except OSError:
        return []
    steps = {name: step for name, step in found.items() if step is not None}
    return sorted(steps, key=lambda name: (steps[name], name))


def is_committed(path: str | Path) -> bool:
    """Return whether a checkpoint's folder has COMMIT, which is written last. The other files may still be damaged."""
    return os.path.exists(os.path.join(path, COMMIT))


def committed(folder: str | Path) -> list[str]:
    """Return the names of the committed checkpoints in a folder, sorted by step."""
    return [name for name in step_folders(folder) if is_committed(os.path.join(folder, name))]


def newest(folder: str | Path) -> str | None:
    """Return the name of the newest committed checkpoint, or None."""
    return next(reversed(committed(folder)), None)


def newest_step(folder: str | Path) -> int | None:
    """Return the step of the newest committed checkpoint, or None."""
    name = newest(folder)
    return None if name is None else step_of(name)


def surplus(names: Sequence[str], keep: int, best: Collection[str] = ()) -> Sequence[str]:
    """Return which of these checkpoints (oldest first) to delete: all except the newest `keep` and those in `best`."""
    return [name for name in names[: -max(1, keep)] if name not in best]


def best_of(folder: str | Path, names: Sequence[str], by: JobMetric | None) -> frozenset[str]:
    """Return the names of the best checkpoint of all by a metric, and of the best checkpoint of the run that wrote the
    newest checkpoint.

    `names` are sorted, oldest first. Checkpoints that can't be read or lack the metric are ignored. If values are
    equal, the newest checkpoint is taken.
    """
    if by is None:
        return frozenset()
    found: dict[str, tuple[float, str]] = {}  # oldest first
    for name in names:
        with contextlib.suppress(BadCheckpointError):
            manifest, _ = read_manifest(Path(folder, name))
            if (value := manifest.metric.get(by.name)) is not None and value == value:  # noqa: PLR0124 (False for NaN)
                found[name] = (value if better_of(by.name, by) is Better.HIGHER else -value), manifest.run
    if not found:
        return frozenset()
    newest_run = next(reversed(found.values()))[1]
    of_run = {name: value for name, (value, run) in found.items() if run == newest_run}
    of_all = {name: value for name, (value, _) in found.items()}
    return frozenset(max(reversed(each), key=each.__getitem__) for each in (of_run, of_all))


# -- a writer's temporary names


def temporary_name(kind: str, name: str) -> str:
    """Return a hidden name for a checkpoint that is being written (tmp), replaced (old) or deleted (gone)."""
    return f".{kind}-{name}-{os.getpid()}-{secrets.token_hex(4)}@{socket.gethostname()}"


@dataclass(frozen=True)
class Leftover:
    """A temporary folder: its kind, the name of its checkpoint, and the process that writes it."""

    kind: str  # tmp | old | gone
    name: str
    pid: int
    host: str


def leftover_of(name: str) -> Leftover | None:
    """Parse the name of a temporary folder. Return None for any other name."""
    match = _TEMPORARY_NAME.fullmatch(name)
    return Leftover(match[1], match[2], int(match[3]), match[4]) if match else None


def delete(path: str | Path) -> None:
    """Delete a checkpoint. It is renamed first, so that a kill leaves no incomplete checkpoint under its name.
    Raises OSError.
    """
    folder, name = os.path.split(path)
    aside = os.path.join(folder, temporary_name("gone", name))
    os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


# -- the content of a checkpoint


class CheckpointState(StrEnum):
    """The result of a check of one checkpoint."""

    COMMITTED = "ok"
    """All files that were checked are complete, so a run may resume from the checkpoint."""
    INCOMPLETE = "incomplete"
    """A file is missing or has the wrong size, for example after an interrupted copy."""
    CORRUPT = "corrupt"
    """A hash does not match, or the manifest has a wrong step or an unknown format."""
    UNREADABLE = "unreadable"
    """The disk or the permissions prevent reading, so the state is unknown."""


class BadCheckpointError(Exception):
    """A checkpoint is not valid. `reason` is a clause that explains why."""

    def __init__(self, state: CheckpointState, reason: str) -> None:
        super().__init__(reason)
        self.state, self.reason = state, reason


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's manifest. `files` maps each file's name to its checksum and size; `time` is in Unix seconds."""

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
class Checked:
    """The result of checking a checkpoint's folder. If the state is COMMITTED, `reason` is empty and `manifest` is
    set.
    """

    path: Path
    step: int  # -1 if neither the name nor the manifest has it
    state: CheckpointState
    reason: str = ""
    manifest: Manifest | None = None
    commit: str = ""  # the manifest's sha256


def check(path: Path, *, verify: bool) -> Checked:
    """Check one checkpoint by the sizes of its files or, with `verify`, by hashing every byte. The result reports any
    damage.

    Raises NotInstalledError if this Python lacks the hash algorithm of the files, because the state is then unknown.
    """
    step = step_of(path.name)
    try:
        manifest, commit = read_manifest(path)
        for name, entry in manifest.files.items():
            if (path / name).stat().st_size != entry["bytes"]:
                raise BadCheckpointError(CheckpointState.INCOMPLETE, f"{name} does not have the size in its manifest")
        for name, entry in manifest.files.items() if verify else ():
            if not Checksum.of(entry).is_of(path / name):
                raise BadCheckpointError(CheckpointState.CORRUPT, f"{name} does not match its checksum")
    except (BadCheckpointError, OSError) as error:
        bad = _as_bad(error)
        return Checked(path, -1 if step is None else step, bad.state, bad.reason)
    return Checked(path, manifest.step, CheckpointState.COMMITTED, manifest=manifest, commit=commit)


def _as_bad(error: BadCheckpointError | OSError) -> BadCheckpointError:
    if isinstance(error, BadCheckpointError):
        return error
    if isinstance(error, FileNotFoundError):
        return BadCheckpointError(
            CheckpointState.INCOMPLETE, f"the checkpoint has no {os.path.basename(str(error.filename))}"
        )
    return BadCheckpointError(CheckpointState.UNREADABLE, f"the checkpoint can't be read: {error.strerror or error}")


def read_manifest(path: Path) -> tuple[Manifest, str]:
    """Return a checkpoint's manifest and the manifest's sha256.

    Raises BadCheckpointError if a file can't be read, or if `verified` raises it.
    """
    try:
        content = read_regular(path / MANIFEST, MOST_RECORD, path.parent)
        commit = read_regular(path / COMMIT, MOST_WORD, path.parent)
    except OSError as error:
        raise _as_bad(error) from error
    return verified(path.name, content, commit)


def verified(name: str, content: bytes, commit: bytes) -> tuple[Manifest, str]:
    """Return a manifest and its sha256 from the contents of the files MANIFEST and COMMIT.

    Raises BadCheckpointError if a file is damaged, if the sha256 differs from COMMIT, or if the step differs from the
    folder's name.
    """
    digest = hashlib.sha256(content).hexdigest()
    if commit.strip() != digest.encode():
        raise BadCheckpointError(CheckpointState.CORRUPT, f"the manifest does not match the checksum in {COMMIT}")
    manifest = manifest_of(content)
    if step_of(name) not in (None, manifest.step):
        raise BadCheckpointError(
            CheckpointState.CORRUPT, f"the manifest belongs to another checkpoint: step {manifest.step}"
        )
    return manifest, digest


def manifest_of(content: bytes | str) -> Manifest:
    """Parse a manifest. Raises BadCheckpointError if it is damaged or names a file outside the checkpoint's folder."""
    try:
        values = parse_json(content)
        if values["format"] not in (FORMAT, FORMAT_OF_CHECKSUMS):
            said = f"its format is {values['format']}; this version reads up to format {FORMAT_OF_CHECKSUMS}"
            raise BadCheckpointError(CheckpointState.CORRUPT, said)
        files = values["files"]
        if STATE not in files or not all(_is_plain(name) and _is_entry(entry) for name, entry in files.items()):
            raise ValueError("the list of the checkpoint's files is invalid")
        if type(values["step"]) is not int:
            raise ValueError(f"the field step has the wrong type: {values['step']!r}")
        known = {name: values[name] for name in _PLAIN if name in values}
        if odd := [name for name, value in known.items() if not isinstance(value, _PLAIN[name])]:
            raise ValueError(f"the field {odd[0]} has the wrong type: {known[odd[0]]!r}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadCheckpointError(CheckpointState.CORRUPT, f"the manifest has an unknown format: {error}") from error
    metric = _numbers(values.get("metric"))
    return Manifest(values["step"], metric=metric, format=values["format"], files=files, **known)


def _is_plain(name: str) -> bool:
    return os.path.basename(name) == name and name not in ("", ".", "..", MANIFEST, COMMIT)


def _is_entry(entry: Mapping[str, Any]) -> bool:
    return type(entry["bytes"]) is int and entry["bytes"] >= 0 and bool(Checksum.of(entry))


def _numbers(metric: Any) -> dict[str, float]:
    values = metric.items() if isinstance(metric, dict) else ()
    return {str(name): value for name, value in values if isinstance(value, (int, float))}


def size_on_disk(path: Path, names: Iterable[str]) -> int:
    """Return the total size in bytes of these files of a checkpoint. Missing files count as 0."""
    total = 0
    for name in names:
        with contextlib.suppress(OSError):
            total += (path / name).stat().st_size
    return total
