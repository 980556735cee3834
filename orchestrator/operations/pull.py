"""Copies results to a folder: rank 0's logs, metrics, the result and a checkpoint. Copies are resumable and verified.

Files with equal content are skipped, and copies of growing files are extended. A checkpoint's COMMIT file is copied
last, so that an interrupted copy never looks like a checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from orchestrator.backends import backend_for
from orchestrator.backends.mirror import watching
from orchestrator.backends.mirror.checkpoints import bring_checkpoint
from orchestrator.backends.mirror.local import copy_latest
from orchestrator.backends.mirror.policy import REQUESTED
from orchestrator.errors import BackendError, OrchError, RunNotFoundError, StoreError, UsageError
from orchestrator.protocol.arriving import is_partial
from orchestrator.protocol.checkpoints import checkpoint_dir
from orchestrator.protocol.checkpoints.checkpoint_dir import BadCheckpointError, CheckpointState
from orchestrator.protocol.checkpoints.checksum import Algorithm, Checksum
from orchestrator.protocol.files import sync_filesystem
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.metric import JobMetric
from orchestrator.protocol.reading import MOST_RECORD, READABLE, NotOrdinaryError, info_of, opened
from orchestrator.protocol.writing import Folder, named_folder
from orchestrator.runs.files.checkpoints import Checkpoint, all_of, best, check, checkpoint_folder
from orchestrator.runs.files.logs import Selection, log_files
from orchestrator.runs.files.metrics import metric_of_checkpoints
from orchestrator.runs.files.outputs import Output, outputs_of
from orchestrator.runs.reducer import left_outputs
from orchestrator.runs.store import RunDir, check_own
from orchestrator.transport.machine import LocalMachine

RECEIPT: Final = "pull.json"
PULLED: Final = "pulled.json"  # file in the run's folder that lists the folders to which it was pulled
TRIES: Final = 5  # a live run may delete or replace the checkpoint during the copy


@dataclass(frozen=True)
class Copied:
    """A file in the target folder. `how` is copied, continued (an older copy was extended) or kept."""

    path: str
    bytes: int
    checksum: Checksum
    how: str

    def to_json(self) -> dict[str, Any]:
        """Return the file as JSON types. The key of the checksum is the name of its algorithm, as in a manifest."""
        checksum = {str(self.checksum.algorithm): self.checksum.hex}
        return {"path": self.path, "bytes": self.bytes, **checksum, "how": self.how}


@dataclass(frozen=True)
class Pulled:
    """The result of a pull into `folder`. `choice` has the reason why this checkpoint, or no checkpoint, was chosen."""

    run_id: str
    folder: str
    files: tuple[Copied, ...]
    step: int | None = None
    choice: str = ""
    skipped: tuple[str, ...] = ()  # checkpoints that were skipped, with reasons

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return {**vars(self), "files": [file.to_json() for file in self.files], "skipped": list(self.skipped)}


def pull(run: RunDir, target: Path, which: str = "latest", tell: Callable[[str], None] = lambda _: None) -> Pulled:
    """Copy the results of a run, which may be live, into `target`. `which` is best, latest, none or the step of a
    checkpoint.
    """
    if which not in ("best", "latest", "none") and not which.isdigit():
        raise UsageError(f"--checkpoint {which} is not a checkpoint", "write best, latest, none or a step's number")
    with _take_folder(run, target) as folder:
        pulled = _pull(run, folder, which, tell)
    _note_folder(run, target)
    return pulled


def _pull(run: RunDir, folder: Folder, which: str, tell: Callable[[str], None]) -> Pulled:
    files = [_grown(run.path / name, folder, name, run.path) for name in ("metrics.jsonl", "result.json")]
    for log in log_files(run, Selection()):
        for path in (log.path.with_name(f"{log.path.name}.1"), log.path):  # also the older part of a rotated log
            files.append(_grown(path, folder, f"logs/attempt_{log.attempt}/{path.name}", run.path))
    files += [_output(run, output, folder) for output in outputs_of(run)]
    pulled = Pulled(run.run_id, folder.path, tuple(file for file in files if file is not None))
    if which != "none":
        pulled = _pull_checkpoint(run, folder, which, pulled, tell)
    sync_filesystem(folder.path)  # one sync for all files, because thousands of syncs take far longer
    _write_receipt(folder, pulled.to_json())
    return pulled


def _note_folder(run: RunDir, target: Path) -> None:
    """Record in the run's folder that the run was pulled to `target`. A later removal of the run reads this record."""
    with contextlib.suppress(StoreError, RunNotFoundError):  # another user's run, or a run that is removed meanwhile
        check_own(run.root, run)
        folders = [*map(str, folders_pulled_to(run)), str(target.resolve())]
        run.write(PULLED, {"folders": list(dict.fromkeys(folders))})


def folders_pulled_to(run: RunDir) -> list[Path]:
    """Return the folders that still have copies of the run's results."""
    try:
        said = (run.read(PULLED) or {}).get("folders")
        folders = [Path(each) for each in said if isinstance(each, str)] if isinstance(said, list) else []
    except StoreError:
        return []
    return [folder for folder in folders if _receipt(folder).get("run_id") == run.run_id]


def _receipt(path: Path) -> dict[str, Any]:
    try:
        with named_folder(path, make=False) as folder:
            return _receipt_in(folder) or {}
    except OSError:
        return {}


def _receipt_in(folder: Folder) -> dict[str, Any] | None:
    """Return the receipt of an earlier pull, which is empty if it is damaged. Return None if this user has not written
    one: a receipt of another user proves nothing.
    """
    try:
        if (data := folder.read(RECEIPT, MOST_RECORD)) is None:
            return None
        found = parse_json(data)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_receipt(folder: Folder, receipt: dict[str, Any]) -> None:
    folder.write(RECEIPT, json.dumps(receipt, indent=1).encode(), mode=READABLE)


def _take_folder(run: RunDir, target: Path) -> Folder:
    """Create and open the target folder. Raises UsageError if it belongs to another user, if it is inside the run's own
    folder, or if it contains files that are not from an earlier pull of this run.
    """
    if target.resolve().is_relative_to(run.path.resolve()):
        raise UsageError(f"{target} is inside the run's own folder", "name another folder: --to DIR")
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(named_folder(target))
            receipt = _receipt_in(folder)
            if receipt and receipt.get("run_id") != run.run_id:
                theirs = f"{target} holds the results of run {receipt.get('run_id')}"
                raise UsageError(theirs, "name another folder: --to DIR")
            if receipt is None and folder.names():
                raise UsageError(f"{target} holds other files", "name a new or empty folder: --to DIR")
            _write_receipt(folder, receipt or {"run_id": run.run_id})  # an interrupted pull can continue from here
        except OSError as error:
            raise UsageError(f"{target} can't be used: {error.strerror}", "name another folder: --to DIR") from error
        stack.pop_all()
    return folder


def bring_outputs(run: RunDir) -> None:
    """Copy the outputs that are only on the run's nodes, of any size. If the run has ended, remove its folders on the
    nodes.

    Raises BackendError, with a list of the folders that are kept, if some outputs can't be copied.
    """
    check_own(run.root, run)
    if sources := backend_for(run.record().kind).sources(run):
        watching.bring_outputs(run, sources)
    if left := left_outputs(run.events()):
        words = [f"{each.host}: {each.folder} is kept there: {each.reason}" for each in left]
        raise BackendError("\n".join(words), f"try again: orch pull {run.run_id} --outputs")


def _output(run: RunDir, output: Output, folder: Folder) -> Copied | None:
    """Copy one output into the target folder. Return None if the program has deleted it meanwhile."""
    return copy_output(run, output, folder, f"outputs/{output.path}")


def copy_output(run: RunDir, output: Output, folder: Folder, name: str) -> Copied | None:
    """Copy one output to the path `name` in a folder. Return None if the program has deleted it meanwhile."""
    below = run.path if run.record().is_remote else None  # outputs of a local run may be outside of its folder
    return _grown(output.file, folder, name, below)


def _grown(source: Path, folder: Folder, name: str, below: Path | None = None) -> Copied | None:
    """Copy the present content of a file to the path `name` in a folder, with its executable bits. Return None if the
    file is missing, or is a link, a pipe or another special file.
    """
    above, _, last = name.rpartition("/")
    if not _is_file(source, below):  # before a folder is made for it
        return None
    try:
        with folder.below(above) as into:
            count, sha256, how = copy_latest(source, into, last, below)
            return Copied(name, count, Checksum(Algorithm.SHA256, sha256), how)
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotOrdinaryError) and not _is_file(source, below):
            return None
        raise _failed(f"{folder.path}/{name}", error) from error


def _is_file(source: Path, below: Path | None) -> bool:
    try:
        info_of(source, below)
    except (FileNotFoundError, NotOrdinaryError):
        return False
    return True


def _failed(target: str | Path, error: OSError) -> OrchError:
    where = error.filename or target
    return OrchError(
        f"{where}: {error.strerror}", "the files copied so far are kept; the same command continues from there"
    )


# -- one checkpoint


def _pull_checkpoint(run: RunDir, target: Folder, which: str, pulled: Pulled, tell: Callable[[str], None]) -> Pulled:
    skipped: dict[Path, Checkpoint] = {}
    metric = metric_of_checkpoints(run.read("run.json"))
    for _ in range(TRIES):
        before = checkpoint_dir.step_folders(checkpoint_folder(run))
        found = [each for each in all_of(run) if _is_of(run, each)]
        found = [skipped.get(each.path, each) for each in found]
        notes = tuple(f"step {each.step} is {each.verdict}: {each.reason}" for each in found if each.reason)
        chosen, choice = choose(found, which, checkpoint_folder(run), metric)
        if chosen is None:
            if before != checkpoint_dir.step_folders(checkpoint_folder(run)):
                continue  # a newer checkpoint has appeared, for which the program has deleted this one
            return replace(pulled, choice=choice, skipped=notes)
        if chosen.path.parent != checkpoint_folder(run):  # the checkpoint is one of the outputs
            place = _complete_output(run, target, chosen.path)
            return replace(pulled, choice=f"{chosen.format} {place} ({choice})", step=chosen.step, skipped=notes)
        tell(f"checkpoint step {chosen.step} ({choice})")
        try:
            files = _copy_checkpoint(chosen, target)
        except BadCheckpointError as error:
            _check_readable(chosen.path)
            # the checkpoint was not replaced during the copy, so it is corrupt
            if check(chosen.path, verify=False).files == chosen.files:
                skipped[chosen.path] = replace(chosen, verdict=CheckpointState.CORRUPT, reason=str(error))
            continue
        _drop_unfinished(target)
        return replace(pulled, files=(*pulled.files, *files), step=chosen.step, choice=choice, skipped=notes)
    raise OrchError(
        "each checkpoint was changed or removed while it was copied", "try again, or name one: --checkpoint STEP"
    )


def _check_readable(checkpoint: Path) -> None:
    """Raise OrchError if a file of the checkpoint can't be read, so that the checkpoint does not count as corrupt. A
    missing file, and an entry that is not an ordinary file, are no such error.
    """
    for path in sorted(checkpoint.glob("*")):
        try:
            with contextlib.suppress(FileNotFoundError, NotOrdinaryError), opened(path):
                pass
        except OSError as error:
            raise _failed(path, error) from error


def _complete_output(run: RunDir, target: Folder, checkpoint: Path) -> str:
    """If outputs are files of this checkpoint, copy them again, because they may have grown. Return the path of the
    checkpoint's copy.
    """
    place = checkpoint
    for output in outputs_of(run):
        if output.file.is_relative_to(checkpoint):
            _output(run, output, target)
            path, below = Path("outputs", output.path), output.file.relative_to(checkpoint)
            place = path.parents[len(below.parts) - 1] if below.parts else path
    return str(place)


def _is_of(run: RunDir, checkpoint: Checkpoint) -> bool:
    """Return True if this run saved the checkpoint. A shared folder may also have checkpoints of other runs."""
    return checkpoint.run in ("", run.run_id)


def _drop_unfinished(target: Folder) -> None:
    """Remove incomplete copies of other checkpoints from the target folder."""
    with target.below("checkpoints") as folder:
        for name in [each for each in folder.names() if checkpoint_dir.step_of(each) is not None]:
            with contextlib.suppress(OSError), folder.below(name, make=False) as copy:
                names = copy.names()
                for each in names if checkpoint_dir.COMMIT not in names else filter(is_partial, names):
                    copy.remove(each)
                if checkpoint_dir.COMMIT not in names:
                    os.rmdir(name, dir_fd=folder.descriptor)


def choose(
    found: list[Checkpoint], which: str, folder: Path, metric: JobMetric | None = None
) -> tuple[Checkpoint | None, str]:
    """Return the checkpoint that `which` names (best, latest or a step), and the reason for the choice.

    The checkpoint is None if no checkpoint is usable. Raises UsageError if `which` is a step without a usable
    checkpoint.
    """
    usable = [each for each in found if each.is_whole]
    if which.isdigit():
        asked = [each for each in found if each.step == int(which)]
        if asked and asked[0].is_whole:
            return asked[0], "the one asked for"
        there = ", ".join(str(each.step) for each in usable) or "none"
        bad = f"the checkpoint of step {which} is {asked[0].verdict}: {asked[0].reason}" if asked else ""
        raise UsageError(bad or f"{folder} has no checkpoint of step {which}", f"available steps: {there}")
    if not usable:
        return None, f"no checkpoint found in {folder}" + (" that may be used" if found else "")
    newest = max(usable, key=lambda each: each.order)
    if which == "latest":
        return newest, "the newest"
    return best(usable, metric) or (newest, "the newest, as none has a metric")


def _copy_checkpoint(source: Checkpoint, target: Folder) -> list[Copied]:
    """Copy and verify a checkpoint's files, the file COMMIT last. Raises BadCheckpointError if the source is damaged
    or has changed.
    """
    copied = []
    path = f"checkpoints/{source.path.name}"
    for each in bring_checkpoint(LocalMachine(), str(source.path), path, REQUESTED, target):
        wanted, how = each.wanted, "kept" if each.is_known else "continued" if each.is_continued else "copied"
        assert wanted.checksum is not None
        copied.append(Copied(f"checkpoints/{wanted.path}", wanted.size, wanted.checksum, how))
    return copied
