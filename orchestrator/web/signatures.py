"""Signatures of a run's files: for each kind of file, a hash that changes when a file of this kind changes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Final

from orchestrator.protocol.layout import samples_file
from orchestrator.runs import labels
from orchestrator.runs.store import RunDir

_FILES: Final = {
    "state": (
        "run.json", "events.jsonl", "cancel.json", "verdict.json", "result.json", "checkpoints", "outputs", labels.FILE,
    ),
    "metrics": ("metrics.jsonl", "nodes/0/metrics.jsonl"),
}  # fmt: skip
_OF_NODE: Final = {"events.jsonl": "state", "seen.json": "state", os.path.basename(samples_file("")): "use"}
MOST_BEATS: Final = 128  # of a large run, the heartbeats of some ranks of all nodes show that it goes on
Signatures = Mapping[str, str]


def signatures_of(run: RunDir) -> Signatures:
    """Return the signatures of the run's state, metrics, logs, heartbeats and samples."""
    found = {name: [_stat(f"{run.path}/{file}") for file in files] for name, files in _FILES.items()}
    found |= {"logs": [], "use": [], "beats": []}
    beats = list[os.DirEntry[str]]()
    with contextlib.suppress(OSError), os.scandir(f"{run.path}/nodes") as nodes:
        for node in nodes:
            for each in os.scandir(node.path):
                if kind := _OF_NODE.get(each.name):
                    found[kind].append(_stat(each))
                elif each.name.startswith("attempt_"):
                    files = list(os.scandir(each.path))
                    found["logs"] += [_stat(file) for file in files if file.name.endswith(".log")]
                    beats += [file for file in files if file.name.startswith("beat_")]
        found["beats"] = [_stat(beat) for beat in beats[:: 1 + len(beats) // MOST_BEATS]]
    return {name: _sums(filter(None, stats)) for name, stats in found.items()}


def _sums(stats: Iterable[os.stat_result]) -> str:
    """Return the number of files, and the sums of their sizes and times. No name is hashed, because a large run has
    thousands of files.
    """
    count = size = moment = 0
    for each in stats:
        count, size, moment = count + 1, size + each.st_size, moment + each.st_mtime_ns
    return f"{count} {size} {moment}"


def _stat(path: str | os.DirEntry[str]) -> os.stat_result | None:
    """Return the stat result of a file, or None if there is no such file."""
    try:
        return os.stat(path)
    except OSError:
        return None
