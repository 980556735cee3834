"""orch doctor --bench: measures the bandwidth of all-reduce on a profile's nodes, and compares the bandwidth with the
last measurement.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import BackendError, OrchError, StoreError
from orchestrator.looking.run import wait
from orchestrator.operations import runs
from orchestrator.operations.submission import submit
from orchestrator.prepare.prepare import Request, prepare
from orchestrator.protocol.json_text import parse_json
from orchestrator.runs.files.logs import result_of
from orchestrator.runs.state import RunStatus
from orchestrator.runs.store import write_durably
from orchestrator.specs.documents.loader import document_of

FOLDER: Final = "bandwidth"  # folder in the state folder with the last figures of each profile
JOB: Final = {"name": "bandwidth", "module": "orchestrator.training.bandwidth"}


@dataclass(frozen=True)
class Figure:
    """A measured bandwidth, inside a node or between nodes, in bytes per second."""

    where: str
    now: float
    line: float | None = None  # the rated bandwidth of the slowest node's network
    before: float | None = None  # the bandwidth in the last measurement


def measure(root: Path, profile: str, tell: Callable[[str], None], sets: tuple[str, ...] = ()) -> list[Figure]:
    """Submit a run that measures the bandwidth, wait for its end, and store its figures.

    The run queues like any other run, and is removed if it succeeded. Raises BackendError if it failed.
    """
    with tempfile.TemporaryDirectory() as empty:
        job = document_of(JOB, Path(empty), "the job of --bench")
        run = submit.submit(root, prepare(root, Request(job, profile, sets, waits=True)))
    try:
        tell(f"{run.run_id} measures the bandwidth of all-reduce")
        state = wait(run)
    except BaseException:  # also Ctrl-C
        with contextlib.suppress(OrchError):
            runs.cancel(root, run, now=True)
        raise
    result = result_of(run)
    if state.state != RunStatus.SUCCEEDED or result is None:
        raise BackendError(f"run {run.run_id} has failed, and measured no bandwidth", f"orch why {run.run_id}")
    figures = figures_of(result, last(root, profile))
    keep(root, profile, figures)
    with contextlib.suppress(OrchError):
        runs.remove(root, run)
    return figures


def figures_of(result: Mapping[str, Any], before: Mapping[str, float]) -> list[Figure]:
    """Return the figures in a run's result, together with the figures `before` of the last measurement."""
    found = []
    for each in result["nodes"]:
        name = f"node {each['node']}"
        if each.get("inside"):
            found.append(Figure(f"{name} ({each['host']})", float(each["inside"]), before=before.get(name)))
    if result.get("between"):
        lines = [each["line"] for each in result["nodes"]]
        slowest = min(lines) if all(lines) else None
        found.append(Figure("between nodes", float(result["between"]), slowest, before.get("between nodes")))
    return found


def last(root: Path, profile: str) -> dict[str, float]:
    """Return the stored figures of a profile; empty if they can't be read."""
    with contextlib.suppress(OSError, ValueError):
        kept = parse_json(_file(root, profile).read_text())
        return {name: float(value) for name, value in kept.items() if isinstance(value, int | float)}
    return {}


def keep(root: Path, profile: str, figures: list[Figure]) -> None:
    """Store the figures of a profile for the next comparison. Raises StoreError if that fails."""
    path = _file(root, profile)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = {each.where.partition(" (")[0]: each.now for each in figures}
        write_durably(path, json.dumps(kept).encode())
    except OSError as error:
        raise StoreError(f"{path} can't be written: {error.strerror}") from error


def _file(root: Path, profile: str) -> Path:
    return root / FOLDER / f"{Path(profile).stem}.json"


def in_words(figure: Figure) -> str:
    """Describe one figure in a line. One GB is 10^9 bytes, as in the data sheets of vendors and in nccl-tests."""
    rate = f" of {figure.line / 1e9:.2f} GB/s that the network gives" if figure.line else ""
    before = f"; last time {figure.before / 1e9:.2f}" if figure.before else ""
    return f"all-reduce, {figure.where}: {figure.now / 1e9:.2f} GB/s{rate}{before}"
