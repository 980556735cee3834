"""The checkpoints of a run as the controlling side reads them: the format of training/checkpoints.py, without torch.

step_XXXXXXXX/{state.pt, manifest.json, COMMIT}     hidden siblings are a writer's temporary folders
              __R_0.distcp, .metadata               where the ranks wrote the weights in parts
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.store import RunDir

FORMAT = 1
STATE, MANIFEST, COMMIT = "state.pt", "manifest.json", "COMMIT"
CHUNK = 8 << 20
_STEP_NAME = re.compile(r"step_(\d{8,})")
_SMALLER_IS_BETTER = re.compile(r"loss|err|perplexity|ppl|nll|mae|mse|rmse|wer|cer|fid|bpc|bpb")


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint folder, what its manifest says, and the verdict on it."""

    path: Path
    step: int
    verdict: str  # committed | torn | corrupt
    reason: str = ""
    hashed: bool = False  # was every byte read?
    epoch: int | None = None
    time: float | None = None
    world_size: int | None = None
    metric: Mapping[str, float] = field(default_factory=dict)
    run: str = ""
    bytes: int = 0  # on the disk
    files: Mapping[str, str] = field(default_factory=dict)  # name -> sha256, COMMIT excepted

    @property
    def is_whole(self) -> bool:
        """May it be resumed from, as far as was looked?"""
        return self.verdict == "committed"

    def to_json(self) -> dict[str, Any]:
        """The checkpoint as JSON types."""
        metric = {name: value if math.isfinite(value) else None for name, value in self.metric.items()}
        return {**asdict(self), "path": str(self.path), "metric": metric, "files": dict(self.files)}


class _BadError(Exception):
    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(reason)
        self.verdict, self.reason = verdict, reason


def checkpoint_folder(run: RunDir) -> Path:
    """Where the run's checkpoints are here: as its plan says; copies from other machines are in its own folder."""
    if (run.read("run.json") or {}).get("kind") in ("ssh", "slurm-login"):
        return run.path / "checkpoints"
    tasks = (run.read("plan.json") or {}).get("tasks")
    task = tasks[0] if isinstance(tasks, list) and tasks and isinstance(tasks[0], dict) else {}
    planned = Path(str(task.get("checkpoint_dir") or run.path / "checkpoints")).expanduser()
    return planned if planned.is_absolute() else Path(str(task.get("code_dir") or run.path)) / planned


def listing(folder: Path, *, verify: bool) -> list[Checkpoint]:
    """All checkpoints of a folder, oldest first; `verify` reads and hashes every byte, else sizes must do."""
    found = [check(path, verify=verify) for path in _step_folders(folder)]
    # A run that goes on deletes its oldest: what has vanished meanwhile was not torn.
    return sorted((each for each in found if each.path.is_dir()), key=lambda each: each.step)


def _step_folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if _STEP_NAME.fullmatch(path.name) and path.is_dir()]
    except OSError:
        return []


def check(path: Path, *, verify: bool) -> Checkpoint:
    """One checkpoint with its verdict; never raises for what it finds there."""
    match = _STEP_NAME.fullmatch(path.name)
    step = int(match[1]) if match else -1
    size = _size(path, (STATE, MANIFEST, COMMIT))
    try:
        manifest = _manifest(path, step)
        for name, entry in manifest["files"].items():
            if (path / name).stat().st_size != entry["bytes"]:
                raise _BadError("torn", f"{name} has not the size that its manifest says")
            if verify and sha256_of(path / name) != entry["sha256"]:
                raise _BadError("corrupt", f"{name} does not match its sha256")
    except _BadError as bad:
        return Checkpoint(path, step, bad.verdict, bad.reason, hashed=verify, bytes=size)
    except FileNotFoundError as error:
        return Checkpoint(path, step, "torn", f"it has no {Path(error.filename).name}", hashed=verify, bytes=size)
    except OSError as error:
        return Checkpoint(path, step, "corrupt", f"it can't be read: {error.strerror}", hashed=verify, bytes=size)
    return Checkpoint(
        path,
        manifest["step"],
        "committed",
        hashed=verify,
        epoch=manifest.get("epoch"),
        time=manifest.get("time"),
        world_size=manifest.get("world_size"),
        metric=_numbers(manifest.get("metric")),
        run=str(manifest.get("run", "")),
        bytes=_size(path, (*manifest["files"], MANIFEST, COMMIT)),
        files={name: entry["sha256"] for name, entry in manifest["files"].items()} | {MANIFEST: manifest[""]},
    )


def _manifest(path: Path, step: int) -> dict[str, Any]:
    """The manifest, held against COMMIT and the folder's name; its own sha256 under the key ""."""
    content = (path / MANIFEST).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if (path / COMMIT).read_bytes().strip() != digest.encode():
        raise _BadError("corrupt", f"its manifest does not match its {COMMIT}")
    try:
        manifest = json.loads(content)
        files = manifest["files"]
        plain = all(
            Path(name).name == name and isinstance(entry["bytes"], int) and isinstance(entry["sha256"], str)
            for name, entry in files.items()
        )
        if manifest["format"] != FORMAT or not plain or STATE not in files or not isinstance(manifest["step"], int):
            raise _BadError("corrupt", f"its format is {manifest['format']}; this version reads format {FORMAT}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _BadError("corrupt", f"its manifest is of another kind: {error}") from error
    if step not in (-1, manifest["step"]):
        raise _BadError("corrupt", f"it is mixed up: its manifest is that of step {manifest['step']}")
    return {**manifest, "": digest}


def _numbers(metric: Any) -> dict[str, float]:
    return (
        {str(name): v for name, v in metric.items() if isinstance(v, int | float)} if isinstance(metric, dict) else {}
    )


def _size(path: Path, names: Iterable[str]) -> int:
    total = 0
    for name in names:
        try:
            total += (path / name).stat().st_size
        except OSError:
            continue
    return total


def sha256_of(path: Path) -> str:
    """The sha256 of a file in hex, read in blocks."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def best(checkpoints: Iterable[Checkpoint]) -> tuple[Checkpoint, str] | None:
    """(the best whole checkpoint, why in words) by accuracy, else by the first metric; None without any metric.

    A metric whose name speaks of a loss or an error is better when it is smaller. Of equals the newest is taken.
    """
    whole = [each for each in checkpoints if each.is_whole and each.metric]
    if not whole:
        return None
    names = [name for each in reversed(whole) for name in each.metric]
    name = "accuracy" if "accuracy" in names else names[0]
    smaller = _SMALLER_IS_BETTER.search(name.lower()) is not None
    rated = [each for each in whole if each.metric.get(name) == each.metric.get(name) and name in each.metric]  # no NaN
    if not rated:
        return None
    chosen = max(rated, key=lambda each: ((-1 if smaller else 1) * each.metric[name], each.step))
    return chosen, f"{name} {chosen.metric[name]:.4g} is the {'smallest' if smaller else 'largest'} of {len(rated)}"
