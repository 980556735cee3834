"""Finds the run's checkpoints of all formats on this node, to resume from them and to measure the run's progress."""

from __future__ import annotations

import glob
import os

from orchestrator.node.agent.stall_detector import read_heartbeat
from orchestrator.protocol.checkpoints.checkpoint_dir import newest_step
from orchestrator.protocol.checkpoints.formats import Format
from orchestrator.protocol.checkpoints.of_run import Places
from orchestrator.protocol.checkpoints.search import AUTO, Saved, at
from orchestrator.protocol.layout import GIVEN, given_folder, node_folder
from orchestrator.protocol.progress import Progress
from orchestrator.protocol.task import NodeTask


def progress(task: NodeTask) -> Progress:
    """Return the run's progress, as the files on this node show it.

    If no checkpoint of a known framework shows the progress, then it is measured by all files that the program has
    written and by the steps in its heartbeats.
    """
    places = Places.of(task)
    sought, found = places.sought, places.look()
    own = newest_step(places.checkpoints) if sought.takes(Format.ORCH) and not sought.glob else None
    steps = [each.step for each in found.saved if each.is_counted]
    if steps or own is not None:
        return Progress(max([*steps, -1 if own is None else own]))
    if sought.format in (AUTO, Format.FILES):
        return Progress(beat=_last_beat(task), saved=found.changed)
    return Progress(saved=max((each.time for each in found.saved), default=0.0))


def _last_beat(task: NodeTask) -> int:
    """Return the highest step in the heartbeats of this node's ranks in all attempts; -1 if there is no heartbeat."""
    node, highest = node_folder(task.run_dir, task.node_rank), -1
    for path in glob.iglob(f"{glob.escape(node)}/attempt_*/beat_*"):
        step = (read_heartbeat(path) or {}).get("step")
        highest = max(highest, step) if type(step) is int else highest
    return highest


def mark_of(saved: Saved) -> str:
    """Return a fingerprint of a checkpoint. If two nodes have different checkpoints under the same name, the
    fingerprints differ.
    """
    if saved.is_counted:
        return str(saved.step)
    try:
        info = os.stat(saved.path)
    except OSError:
        return ""
    return f"{info.st_mtime_ns}-{info.st_size}"


def place_of(task: NodeTask, name: str) -> str:
    """Return the path of the named checkpoint on this node. Raises ValueError if the path would be outside the
    checkpoint folders.
    """
    root, _, below = name.partition("/")
    if root == GIVEN and below and "/" not in below and below not in (".", ".."):
        return f"{given_folder(task.run_dir)}/{below}"
    return Places.of(task).path(name)


def resumable(task: NodeTask, attempt: int) -> dict[str, Saved]:
    """Return the checkpoints from which an attempt may resume, by name, the newest first. A checkpoint has the same
    name on all nodes.

    The list has the run's own checkpoints. If the run has no checkpoint yet, the list has only the checkpoint with
    which the run was submitted, if any.
    """
    given = "" if task.resume in ("auto", "never") else os.path.join(task.code_dir, os.path.expanduser(task.resume))
    if not (attempt or task.start or given):
        return {}
    found = Places.of(task).own()
    start = at(given) if given and not found else None
    return {f"{GIVEN}/{os.path.basename(start.path)}": start} if start is not None else found
