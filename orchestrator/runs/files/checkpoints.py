"""Lists a run's checkpoints on the submitting machine, each with its state, metric and size. torch is not needed.

Checkpoints in orch's own format are in one folder and are copied separately. Checkpoints in other formats are among the
run's outputs.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import StoreError
from orchestrator.protocol.checkpoints import checkpoint_dir
from orchestrator.protocol.checkpoints.checkpoint_dir import COMMIT, MANIFEST, STATE, Checked, CheckpointState
from orchestrator.protocol.checkpoints.checksum import Algorithm, Checksum, NotInstalledError
from orchestrator.protocol.layout import output_folder
from orchestrator.protocol.metric import Better, JobMetric, better_of
from orchestrator.protocol.outputs import CHECKPOINTS
from orchestrator.protocol.quantities import number
from orchestrator.runs.store import RunDir

if TYPE_CHECKING:
    from orchestrator.protocol.checkpoints.search import Saved


MOST_LOOKED_AT = 5000
MOST_NAMED = 3
_LIKE_A_CHECKPOINT = re.compile(r"ckpt|checkpoint|weights|snapshot", re.I)
_TEXTS = (".txt", ".json", ".jsonl", ".yaml", ".yml", ".log", ".py", ".sh", ".md", ".csv", ".png", ".svg")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: the data in its manifest or in its framework's files, and the result of a check of its files."""

    path: Path
    step: int
    verdict: CheckpointState
    reason: str = ""
    hashed: bool = False  # whether every byte was read
    epoch: int | None = None
    time: float | None = None
    world_size: int | None = None
    metric: Mapping[str, float] = field(default_factory=dict)
    run: str = ""
    bytes: int = 0  # bytes on the disk
    files: Mapping[str, Checksum] = field(default_factory=dict)  # without COMMIT; only for orch's own format
    format: str = "orch"

    @property
    def is_whole(self) -> bool:
        """Return whether a run may resume from the checkpoint. If the check did not hash the files (`hashed`),
        damaged bytes are not detected.
        """
        return self.verdict is CheckpointState.COMMITTED

    @property
    def order(self) -> tuple[int, float]:
        """Return a sort key that is greater for newer checkpoints. The number in the name of a plain weight file is
        not used as a step, because it may be a year.
        """
        return (-1 if self.format == "files" else self.step, self.time or 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the checkpoint as JSON types."""
        metric = {name: value if math.isfinite(value) else None for name, value in self.metric.items()}
        step = self.step if self.step >= 0 else None  # -1 means unknown
        files = {name: str(checksum) for name, checksum in self.files.items()}
        return {**asdict(self), "step": step, "path": str(self.path), "metric": metric, "files": files}


def checkpoint_folder(run: RunDir) -> Path:
    """Return the local folder of the run's checkpoints: the folder in the plan or, if the run is on other machines,
    the folder for copies in the run's own folder.
    """
    if run.record().is_remote:
        return run.path / "checkpoints"
    task = run.plan().first
    planned = Path(task.checkpoint_dir or run.path / "checkpoints").expanduser()
    return planned if planned.is_absolute() else Path(task.code_dir or run.path) / planned


def listing(folder: Path, *, verify: bool) -> list[Checkpoint]:
    """Return all checkpoints of a folder, oldest first. With `verify`, every byte is hashed; otherwise only the
    sizes are compared.
    """
    found = [check(folder / name, verify=verify) for name in checkpoint_dir.step_folders(folder)]
    # A live run deletes its oldest checkpoints, so a vanished checkpoint was not damaged.
    return [each for each in found if each.path.is_dir()]


def check(path: Path, *, verify: bool) -> Checkpoint:
    """Check one checkpoint and return it with its state. Damage does not raise an error."""
    try:
        found = checkpoint_dir.check(path, verify=verify)
    except NotInstalledError as error:
        step = checkpoint_dir.step_of(path.name)
        found = Checked(path, -1 if step is None else step, CheckpointState.UNREADABLE, str(error))
    manifest = found.manifest
    if manifest is None:
        size = checkpoint_dir.size_on_disk(path, (STATE, MANIFEST, COMMIT))
        return Checkpoint(path, found.step, found.state, found.reason, hashed=verify, bytes=size)
    return Checkpoint(
        path,
        manifest.step,
        found.state,
        hashed=verify,
        epoch=manifest.epoch,
        time=manifest.time,
        world_size=manifest.world_size,
        metric=manifest.metric,
        run=manifest.run,
        bytes=checkpoint_dir.size_on_disk(path, (*manifest.files, MANIFEST, COMMIT)),
        files={name: Checksum.of(entry) for name, entry in manifest.files.items()}
        | {MANIFEST: Checksum(Algorithm.SHA256, found.commit)},
    )


def all_of(run: RunDir, *, verify: bool = False) -> list[Checkpoint]:
    """Return all checkpoints of a run that are on this machine, oldest first.

    Incomplete checkpoints are included only if they are in orch's own format.
    """
    from orchestrator.protocol.checkpoints.formats import Format

    own = listing(checkpoint_folder(run), verify=verify)
    known = {each.path for each in own}
    others = [
        check(Path(each.path), verify=verify) if each.format is Format.ORCH else _of_other_format(each)
        for each in reversed(saved_by(run))
        if Path(each.path) not in known
    ]
    return [*own, *others]


def saved_by(run: RunDir) -> list[Saved]:
    """Return the run's complete checkpoints of any format that are on this machine, newest first."""
    from orchestrator.protocol.checkpoints.of_run import Places
    from orchestrator.protocol.checkpoints.search import Sought, find_saved, newest_first

    task = run.plan().first
    sought = Sought(task.checkpoint_format, task.checkpoint_glob)
    if not run.record().is_remote:
        code = task.code_dir or str(run.path / "code")
        return list(Places(str(run.path), code, str(checkpoint_folder(run)), sought).own().values())
    outputs = output_folder(str(run.path))
    found = find_saved((outputs, f"{outputs}/{CHECKPOINTS}"), sought=sought)
    record = _record_of_outputs(run, 0)
    lacking, kept = record.get("lacking", []), record.get("files", {})
    if not isinstance(lacking, list) or not isinstance(kept, dict):  # the record is damaged
        return []
    return newest_first(each for each in found if _is_here(os.path.relpath(each.path, outputs), lacking, kept))


def unusable(run: RunDir) -> list[str]:
    """Return a sentence on each file that looks like a checkpoint but is incomplete or has an unknown format.

    Callers use this if a run has no usable checkpoint.
    """
    from orchestrator.protocol.checkpoints.weight_files import is_whole, names_weights

    code = run.plan().first.code_dir or str(run.path / "code")
    tops = (output_folder(str(run.path)), *(() if run.record().is_remote else (code,)))
    found, sent = [], run.code_files()
    for top in tops:
        for path in _files_below(top, MOST_LOOKED_AT):
            name = os.path.basename(path)
            if os.path.relpath(path, top) in sent:
                continue
            if names_weights(name):
                found += [] if is_whole(path) else [f"{path} is not whole, so it is no checkpoint to resume from"]
            elif _LIKE_A_CHECKPOINT.search(name) and not name.endswith(_TEXTS):
                found += [f"{path} has no format that orch knows; if it is a checkpoint, name it in checkpoint.glob"]
    return found[:MOST_NAMED]


def _files_below(top: str, most: int) -> list[str]:
    """Return the first `most` files below a folder. Links, hidden folders and folders called `data` or `__pycache__`
    are skipped.
    """
    found = list[str]()
    for folder, names, files in os.walk(top):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in ("data", "__pycache__"))
        found += [f"{folder}/{name}" for name in sorted(files) if not os.path.islink(f"{folder}/{name}")]
        if len(found) >= most:
            break
    return found[:most]


def _record_of_outputs(run: RunDir, node: int) -> Mapping[str, Any]:
    """Return the record of the outputs that were copied from a node; an empty record if there is none. If the record is
    damaged, its field `lacking` is None.
    """
    try:
        return run.read(f"nodes/{node}/outputs.json") or {}
    except StoreError:
        return {"lacking": None}


def _is_here(name: str, lacking: Iterable[object], kept: Collection[object]) -> bool:
    """Return whether a checkpoint of node 0 was copied completely to this machine.

    If files differ between nodes, the copies from nodes 1, 2, ... are in folders node_1, node_2, ... A checkpoint that
    is a single file is replaced atomically, so its copy is complete even if node 0 has a newer version.
    """
    if re.match(r"node_\d+/", name):
        return False
    return name in kept or not any(f"{each}/".startswith(f"{name}/") for each in lacking)


@dataclass(frozen=True)
class NotHere:
    """A checkpoint on one of the run's machines that was not completely copied to this machine. `time` is the time
    of its newest file.
    """

    host: str
    name: str
    time: float


def not_here(run: RunDir) -> list[NotHere]:
    """Return each node's newest checkpoints that have not been copied to this machine yet. Their names are paths
    relative to the run's outputs.
    """
    if not run.record().is_remote:
        return []
    found = []
    for path in sorted(run.path.glob("nodes/*/outputs.json")):
        record = _record_of_outputs(run, int(path.parent.name)) if path.parent.name.isdecimal() else {}
        newer = record.get("newer")
        for name, time in newer.items() if isinstance(newer, dict) else ():
            if isinstance(time, int | float):
                found.append(NotHere(str(record.get("host")), str(name), float(time)))
    return sorted(found, key=lambda each: (each.host, each.name))


def _of_other_format(saved: Saved) -> Checkpoint:
    from orchestrator.protocol.checkpoints.search import files_of

    return Checkpoint(
        Path(saved.path), saved.step, CheckpointState.COMMITTED, time=saved.time, metric=saved.metric,
        bytes=sum(files_of(saved).values()), format=saved.format,
    )  # fmt: skip


def best(checkpoints: Iterable[Checkpoint], of_job: JobMetric | None = None) -> tuple[Checkpoint, str] | None:
    """Return (the best complete checkpoint, the reason for the choice), or None if no checkpoint has a metric.

    The metric is the job's, else accuracy, else the first metric of the newest checkpoint that has metrics. If several
    checkpoints have the best value, the newest is returned.
    """
    whole = [each for each in checkpoints if each.is_whole and each.metric]
    if not whole:
        return None
    names = [name for each in reversed(whole) for name in each.metric]
    name = next((name for name in (of_job.name if of_job else "", "accuracy") if name in names), names[0])
    better = better_of(name, of_job)
    # x == x is False for NaN
    rated = [each for each in whole if each.metric.get(name) == each.metric.get(name) and name in each.metric]
    if not rated:
        return None
    chosen = max(rated, key=lambda each: ((-1 if better is Better.LOWER else 1) * each.metric[name], each.step))
    word = "smallest" if better is Better.LOWER else "largest"
    why = f"{name} {number(chosen.metric[name])} is the {word} of {len(rated)}"
    return chosen, why if of_job is None or of_job.name == name else f"{why}, as none has a metric '{of_job.name}'"
