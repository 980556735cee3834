"""What a run has saved so far, whoever's format it is: by this the restart policy knows one that gets on."""

from __future__ import annotations

import json
import time

from orchestrator.protocol.checkpoint_dir import newest_step
from orchestrator.protocol.checkpoint_formats import Format, Saved, find_saved
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.restart import Progress
from orchestrator.protocol.task import NodeTask


def progress(task: NodeTask) -> Progress:
    """Return the newest checkpoint of the run that lies on this node."""
    own = newest_step(task.checkpoint_dir)
    found = find_saved((task.checkpoint_dir, task.code_dir, f"{task.run_dir}/outputs"), _begun(task))
    return max([Progress() if own is None else Progress(own), *map(_progress_of, found)])


def _progress_of(saved: Saved) -> Progress:
    """Return what a checkpoint counts for; a number in any file's name may be a year, so there its time counts."""
    return Progress(saved.step) if saved.step >= 0 and saved.format is not Format.FILES else Progress(saved=saved.time)


def _begun(task: NodeTask) -> float:
    """Return when the run's first agent began on this node: what lay there before came with the code."""
    try:
        with open(f"{node_folder(task.run_dir, task.node_rank)}/events.jsonl", encoding="utf-8") as file:
            begun = json.loads(file.readline()).get("time")
    except (OSError, ValueError, AttributeError):
        begun = None
    return float(begun) if isinstance(begun, (int, float)) else time.time()
