"""Chooses the checkpoint from which a start on other machines resumes, and sends it to node 0. Checkpoints of any
format are supported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends.mirror.checkpoints import newest_checkpoint, remote_checkpoints
from orchestrator.backends.mirror.output_record import Home
from orchestrator.backends.mirror.send import give_checkpoint, give_file
from orchestrator.backends.settings import remote_folder
from orchestrator.protocol.checkpoints.checkpoint_dir import is_committed, newest_step, step_of
from orchestrator.protocol.checkpoints.formats import Format
from orchestrator.protocol.checkpoints.of_run import progress_of_saved
from orchestrator.protocol.checkpoints.search import Saved, at, files_of
from orchestrator.protocol.layout import given_folder, output_folder
from orchestrator.protocol.outputs import CHECKPOINTS, CODE, OUTPUTS
from orchestrator.protocol.progress import Progress
from orchestrator.protocol.task import NodeTask
from orchestrator.runs.files.checkpoints import saved_by
from orchestrator.runs.store import RunDir

if TYPE_CHECKING:  # loads fabric
    from orchestrator.transport.machine import Machine


@dataclass(frozen=True)
class Given:
    """A checkpoint on this machine, and its target path on node 0. `is_own`: this run has saved the checkpoint."""

    saved: Saved
    target: str
    is_own: bool


def with_given_checkpoint(tasks: tuple[NodeTask, ...]) -> tuple[NodeTask, ...]:
    """Return the tasks. If they resume from a checkpoint on this machine, they get the path of its copy on node 0."""
    found = _asked_for(tasks[0].resume)
    if found is None:
        return tasks
    name = "" if found.format is Format.ORCH else f"/{Path(found.path).name}"
    return tuple(replace(task, resume=f"{given_folder(task.run_dir)}{name}") for task in tasks)


def checkpoint_to_give(run: RunDir, task: NodeTask) -> Given | None:
    """Return the checkpoint to send to node 0: the run's newest one, or else the one from which the job resumes."""
    if own := newest_checkpoint(run.path / "checkpoints"):
        return _of_orch(own, remote_checkpoints(run), is_own=True)
    for saved in saved_by(run):
        if place := _place(run, task, saved):
            return Given(saved, place, is_own=True)
    found = _asked_for(run.plan().first.resume)
    if found is None or found.format is Format.ORCH:
        return _of_orch(Path(found.path), given_folder(task.run_dir), is_own=False) if found else None
    return Given(found, f"{given_folder(task.run_dir)}/{Path(found.path).name}", is_own=False)


def _of_orch(path: Path, folder: str, *, is_own: bool) -> Given:
    return Given(Saved(Format.ORCH, str(path), -1, 0.0), f"{folder}/{path.name}", is_own)


def _asked_for(resume: str) -> Saved | None:
    """Return the checkpoint on this machine that a job's `checkpoint.resume` names. If it names a folder of
    checkpoints, return the newest.
    """
    if not Path(resume).is_absolute() or not Path(resume).exists():
        return None
    own = Path(resume) if is_committed(resume) else newest_checkpoint(Path(resume))
    return Saved(Format.ORCH, str(own), -1, 0.0) if own is not None else at(resume)


def newest_here(run: RunDir) -> Progress:
    """Return the progress (such as the step) of the run's newest checkpoint on this machine."""
    step = newest_step(run.path / "checkpoints")
    return max([Progress() if step is None else Progress(step), *map(progress_of_saved, saved_by(run))])


def _place(run: RunDir, task: NodeTask, saved: Saved) -> str | None:
    """Return the original path, on node 0, of a checkpoint that was copied with the outputs; None if unknown."""
    top = Path(output_folder(str(run.path)))
    roots = {CODE: task.code_dir, OUTPUTS: output_folder(task.run_dir), CHECKPOINTS: remote_checkpoints(run)}
    known, path = Home.read(run, 0).files, Path(saved.path)
    for name in files_of(saved):
        kept = known.get(str((path.parent / name).relative_to(top)))
        below = len(Path(name).parts) - 1  # the depth of the file below the checkpoint's own path
        if kept is not None and name.startswith(path.name) and kept.root in roots:
            place = Path(kept.path).parents[below - 1] if below else kept.path
            return f"{roots[kept.root]}/{place}"
    return None


# -- on a machine


def newest_there(machine: Machine, run: RunDir) -> Progress:
    """Return the progress (such as the step) of the newest checkpoint in the run's folders on a machine."""
    names = machine.call("steps", folder=remote_checkpoints(run))[0]["steps"]
    steps = [Progress(step) for name in names if (step := step_of(name)) is not None]
    return max([*steps, _ask_saved(machine, run)[0]])


def _ask_saved(machine: Machine, run: RunDir, given: str = "") -> tuple[Progress, bool]:
    """Return the progress of the run's newest checkpoint on a machine, and whether the machine has the checkpoint
    `given`.
    """
    task = run.plan().first
    reply, _ = machine.call(
        "saved", run_dir=remote_folder(run), code_dir=task.code_dir or f"{remote_folder(run)}/code", given=given,
        checkpoints=remote_checkpoints(run), format=task.checkpoint_format, glob=task.checkpoint_glob,
    )  # fmt: skip
    return Progress.from_json(reply["newest"]), bool(reply["given"])


def give(machine: Machine, run: RunDir, given: Given) -> None:
    """Send the checkpoint to a machine, unless the machine has the same checkpoint or a newer checkpoint of the run."""
    saved, (folder, _, name) = given.saved, given.target.rpartition("/")
    if saved.format is Format.ORCH:
        there = machine.call("steps", folder=folder)[0]["steps"]
        if not there or there[-1] < name:
            give_checkpoint(machine, Path(saved.path), given.target)
        return
    newest, has_it = _ask_saved(machine, run, given.target)
    if has_it or (given.is_own and newest >= progress_of_saved(saved)):
        return
    above, files = Path(saved.path).parent, files_of(saved)
    partial = f"{folder}/.{name}.given"
    with machine.bulk(sum(files.values())) as fast:
        for path in files:
            give_file(fast, above / path, f"{partial}/{path}")
        fast.call("commit_files", source=partial, target=given.target)
