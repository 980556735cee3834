"""Signatures of a run's files: for each kind of file, a hash that changes when a file of this kind changes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from hashlib import blake2s
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
Signatures = Mapping[str, str]


def signatures_of(run: RunDir) -> Signatures:
    """Return the signatures of the run's state, metrics, logs, heartbeats and samples."""
    found = {name: [_stat(f"{run.path}/{file}") for file in files] for name, files in _FILES.items()}
    found |= {"logs": [], "beats": [], "use": []}
    with contextlib.suppress(OSError), os.scandir(f"{run.path}/nodes") as nodes:
        for node in nodes:
            found["state"].append(_stat(f"{node.path}/events.jsonl"))
            found["state"].append(_stat(f"{node.path}/seen.json"))
            found["use"].append(_stat(samples_file(node.path)))
            for attempt in (each for each in os.scandir(node.path) if each.name.startswith("attempt_")):
                for file in os.scandir(attempt.path):
                    kind = "logs" if file.name.endswith(".log") else "beats" if file.name.startswith("beat_") else ""
                    if kind:
                        found[kind].append(_words(file.path, file.stat()))
    return {name: _hash("\n".join(sorted(values))) for name, values in found.items()}


def _hash(text: str) -> str:
    return blake2s(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _words(path: str, found: os.stat_result) -> str:
    return f"{path} {found.st_size} {found.st_mtime_ns}"


def _stat(path: str) -> str:
    """Return a text that changes when the file changes; empty if there is no such file."""
    try:
        return _words(path, os.stat(path))
    except OSError:
        return ""
