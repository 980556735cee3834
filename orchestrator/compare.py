"""What changed between two runs: documents, code, variables, versions, hosts, outcome. Reads, never writes."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.logs import result_of
from orchestrator.records import RunState
from orchestrator.runrecord import run_record
from orchestrator.store import Record, RunDir

DIFF_LINES: Final = 40  # of each file
TEXT_BYTES: Final = 256 << 10
NOTHING: Final = "-"


@dataclass(frozen=True)
class Row:
    """One thing that differs, as words."""

    section: str  # job | profile | env | code | versions | hosts | result
    what: str
    one: str
    other: str


@dataclass(frozen=True)
class FileChange:
    """One file of the code that differs; `diff` is a short unified diff of a text file."""

    path: str
    change: str  # added | removed | changed
    diff: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Everything that differs from the first run to the second."""

    one: str
    other: str
    rows: tuple[Row, ...]
    files: tuple[FileChange, ...]

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON types."""
        return asdict(self)


def compare(one: RunDir, other: RunDir, states: tuple[RunState, RunState]) -> Comparison:
    """Hold two runs against each other, by what was recorded of them."""
    rows = [row for row in _rows(_facts(one, states[0]), _facts(other, states[1])) if row.one != row.other]
    return Comparison(one.run_id, other.run_id, tuple(rows), tuple(_files(one, other)))


def _rows(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> Iterator[Row]:
    for section, mine in one.items():
        theirs = other[section]
        for what in [*mine, *(name for name in theirs if name not in mine)]:
            if section == "env":
                yield Row(section, what, *_values_apart(mine.get(what), theirs.get(what)))
            else:
                yield Row(section, what, _word(mine.get(what)), _word(theirs.get(what)))


def _values_apart(one: str | None, other: str | None) -> tuple[str, str]:
    """Values are not shown: only that one is there, or that they differ."""
    if one is not None and other is not None:
        return "set", "set" if one == other else "another value"
    return ("set", NOTHING) if other is None else (NOTHING, "set")


def _word(value: Any) -> str:
    if value is None or value in ([], {}, ""):
        return NOTHING
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _facts(run: RunDir, state: RunState) -> dict[str, dict[str, Any]]:
    record, plan = run.read("run.json") or {}, run.read("plan.json") or {}
    events = run.events()
    whole = run_record(record, events)
    job, profile = dict(record.get("job") or {}), dict(record.get("profile") or {})
    job.pop("env", None)  # with the values that came from elsewhere, below
    code = whole["code"] or {}
    nodes = whole["versions"].pop("nodes")
    versions = {"orch": whole["versions"]["orch"], "python of orch": whole["versions"]["python"]}
    for what in ("python", "torch"):
        versions[f"{what} of the nodes"] = ", ".join(sorted({str(node[what]) for node in nodes if node[what]}))
    return {
        "job": _flat(job),
        "profile": _flat(profile),
        "env": _environment(plan),
        "code": {
            "commit": code.get("git"),
            "uncommitted changes": code.get("diff") and str(code["diff"])[:12],
            "untracked files": len(code.get("untracked") or []),
            "sha256": str(code.get("sha256", ""))[:12],
        },
        "versions": versions,
        "hosts": {"hosts": ", ".join(whole["hosts"]), "world size": state.world_size},
        "result": {
            "state": state.state,
            "reason": state.verdict.reason if state.verdict else None,
            "restarts": state.restarts,
            "seconds from start to end": state.ended - state.started if state.ended and state.started else None,
            **_flat(result_of(run) or {}),
        },
    }


def _environment(plan: Record) -> dict[str, str]:
    tasks = plan.get("tasks") or [{}]
    named = {str(name): "a secret" for name in plan.get("secret_names") or []}
    return {**{str(name): str(value) for name, value in (tasks[0].get("env") or {}).items()}, **named}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found.update(_flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


# -- code


def _files(one: RunDir, other: RunDir) -> Iterator[FileChange]:
    mine, theirs = _listing(one), _listing(other)
    if not mine or not theirs:
        return  # the snapshot of one is not known: its hash must do
    for path in sorted({*mine, *theirs}):
        if mine.get(path) == theirs.get(path):
            continue
        if path not in mine:
            yield FileChange(path, "added")
        elif path not in theirs:
            yield FileChange(path, "removed")
        else:
            texts = [_text(run, path, entry) for run, entry in ((one, mine[path]), (other, theirs[path]))]
            yield FileChange(path, "changed", _unified(texts[0], texts[1], path))


def _listing(run: RunDir) -> dict[str, list[str]]:
    listing: dict[str, list[str]] = (run.read("code.json") or {}).get("files") or {}
    return listing


def _text(run: RunDir, path: str, entry: list[str]) -> list[str] | None:
    """The lines of a file as it was sent; None for what is no text, or has been changed by the run itself."""
    file = Path(run.path / "code" / path)
    try:
        if entry[0] not in "fx" or file.stat().st_size > TEXT_BYTES:
            return None
        content = file.read_bytes()
        return content.decode().splitlines() if hashlib.sha256(content).hexdigest() == entry[1] else None
    except (OSError, ValueError):
        return None


def _unified(one: list[str] | None, other: list[str] | None, path: str) -> tuple[str, ...]:
    if one is None or other is None:
        return ()
    lines = list(difflib.unified_diff(one, other, path, path, n=2, lineterm=""))
    left = len(lines) - DIFF_LINES
    return (*lines[:DIFF_LINES], *([f"... {left} more lines"] if left > 0 else []))
