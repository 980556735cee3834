"""Signatures of a run's files: a hash for each kind of file, which changes when such a file changes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from hashlib import blake2s
from typing import Any, Final

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
    found: dict[str, list[Any]] = {name: [_stat(f"{run.path}/{file}") for file in files] for name, files in
                                   _FILES.items()} | {"logs": [], "beats": [], "use": []}  # fmt: skip
    with contextlib.suppress(OSError), os.scandir(f"{run.path}/nodes") as nodes:
        for node in nodes:
            found["state"].append(_stat(f"{node.path}/events.jsonl"))
            found["state"].append(_stat(f"{node.path}/seen.json"))
            found["use"].append(_stat(samples_file(node.path)))
            for attempt in (each for each in os.scandir(node.path) if each.name.startswith("attempt_")):
                for file in os.scandir(attempt.path):
                    kind = "logs" if file.name.endswith(".log") else "beats" if file.name.startswith("beat_") else ""
                    if kind:
                        found[kind].append((file.path, file.stat().st_size, file.stat().st_mtime_ns))
    return {name: _word(sorted(values, key=repr)) for name, values in found.items()}


def _word(values: list[Any]) -> str:
    return blake2s(repr(values).encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _stat(path: str) -> tuple[str, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return path, found.st_size, found.st_mtime_ns
