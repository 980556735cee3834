"""Every kind of event that anybody writes is named in one place."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

from orchestrator.protocol.events import KINDS, BatchJob, read_event

PACKAGE = Path(__file__).parents[3] / "orchestrator"
WRITERS = {"write", "record", "append_event", "_event"}  # of an EventLog, of the leader, of a RunDir
OF_THE_LAUNCHER = ("imported", "started", "log_error")  # what an agent records of its launcher's words, as launcher_*


def written(path: Path) -> set[str]:
    """The literal kinds of the events that a file writes."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        kind = node.args[0]
        if node.func.attr in WRITERS and isinstance(kind, ast.Constant) and isinstance(kind.value, str):
            found.add(kind.value)
    return {kind for kind in found if kind.isidentifier()}  # the others are files' names and contents


def test_no_event_is_written_by_the_name_of_its_kind() -> None:
    folders = (PACKAGE / name for name in ("node", "backends", "prepare", "supervisor", "operations"))
    paths = sorted(itertools.chain.from_iterable(folder.rglob("*.py") for folder in folders))
    assert paths
    assert {kind: path.name for path in paths for kind in written(path)} == {}


def test_what_a_launcher_reports_is_recorded_under_a_kind_of_its_own() -> None:
    assert {f"launcher_{word}" for word in OF_THE_LAUNCHER} <= KINDS.keys()


def test_the_start_of_a_slurm_job_is_read_from_a_run_of_the_first_version() -> None:
    event = read_event({"kind": "slurm_job", "node": 0, "start": 1, "job": "17", "hosts": ["n1"], "requeues": 2})
    assert event == read_event(
        {"kind": "batch_job", "node": 0, "start": 1, "job": "17", "hosts": ["n1"], "requeues": 2}
    )
    assert isinstance(event, BatchJob)
