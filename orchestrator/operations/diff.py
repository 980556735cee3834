"""Compares the job, profile, code, variables, versions, hosts and outcome of two runs. Nothing is written."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from orchestrator.protocol.json_text import flattened
from orchestrator.protocol.reading import read_regular
from orchestrator.runs.files.logs import result_of
from orchestrator.runs.leaving import redaction_of_message
from orchestrator.runs.record import PlanRecord
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir
from orchestrator.runs.summary import run_record

DIFF_LINES: Final = 40  # the most lines of the diff of a file
TEXT_BYTES: Final = 256 << 10
NOTHING: Final = "-"


@dataclass(frozen=True)
class Row:
    """One difference between the runs, with both values as text."""

    section: str  # job | profile | env | code | versions | hosts | result
    what: str
    one: str
    other: str


@dataclass(frozen=True)
class FileChange:
    """A code file that differs. `diff` is a short unified diff of a text file, and empty for other files."""

    path: str
    change: str  # added | removed | changed
    diff: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """All differences between two runs."""

    one: str
    other: str
    rows: tuple[Row, ...]
    files: tuple[FileChange, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON types."""
        return asdict(self)


def compare(one: RunDir, other: RunDir, states: tuple[RunState, RunState]) -> Comparison:
    """Compare the records of two runs."""
    rows = [row for row in _rows(_facts(one, states[0]), _facts(other, states[1])) if row.one != row.other]
    found = Comparison(one.run_id, other.run_id, tuple(rows), tuple(_files(one, other)))
    return _redacted(found, redaction_of_message(one, other))


def _redacted(found: Comparison, redact: Redaction) -> Comparison:
    """Return the comparison without secrets.

    In code only known secrets are masked, so that the diff of `key = 1` and `key = 2` is still shown.
    """
    rows = (replace(row, one=_shown(redact, row, row.one), other=_shown(redact, row, row.other)) for row in found.rows)
    files = (replace(file, diff=tuple(map(redact.known, file.diff))) for file in found.files)
    return replace(found, rows=tuple(rows), files=tuple(files))


def _shown(redact: Redaction, row: Row, value: str) -> str:
    """Return a value with masked secrets. A document's field is masked completely if its name looks secret."""
    is_written = row.section in ("job", "profile") and value != NOTHING
    return str(redact.json(value, row.what if is_written else ""))


def _rows(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> Iterator[Row]:
    for section, mine in one.items():
        theirs = other[section]
        for what in [*mine, *(name for name in theirs if name not in mine)]:
            if section == "env":
                yield Row(section, what, *_hidden_difference(mine.get(what), theirs.get(what)))
            else:
                yield Row(section, what, _word(mine.get(what)), _word(theirs.get(what)))


def _hidden_difference(one: str | None, other: str | None) -> tuple[str, str]:
    """Describe whether two variables are set and whether their values differ. The values themselves are not shown."""
    if one is not None and other is not None:
        return "set", "set" if one == other else "another value"
    return ("set", NOTHING) if other is None else (NOTHING, "set")


def _word(value: Any) -> str:
    if value is None or value in ([], {}, ""):
        return NOTHING
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _facts(run: RunDir, state: RunState) -> dict[str, dict[str, Any]]:
    record = run.record()
    events = run.events()
    whole = run_record(record, events)
    # the variables are left out, because they are compared below
    job = {name: value for name, value in record.job_document.items() if name != "env"}
    code: Mapping[str, Any] = {} if whole["code"] is None else whole["code"]
    nodes = whole["versions"].pop("nodes")
    versions = {"orch": whole["versions"]["orch"], "python of orch": whole["versions"]["python"]}
    for what in ("python", "torch"):
        versions[f"{what} of the nodes"] = ", ".join(sorted({str(node[what]) for node in nodes if node[what]}))
    return {
        "job": flattened(job),
        "profile": flattened(record.profile_document),
        "env": _environment(run.plan()),
        "code": {
            "commit": code.get("git"),
            "uncommitted changes": code.get("diff") and str(code["diff"])[:12],
            "untracked files": len(code.get("untracked", ())),
            "sha256": str(code.get("sha256", ""))[:12],
        },
        "versions": versions,
        "hosts": {"hosts": ", ".join(whole["hosts"]), "world size": state.world_size},
        "result": {
            "state": state.state,
            "reason": state.verdict.reason if state.verdict else None,
            "restarts": state.restarts,
            "seconds from start to end": state.ended - state.started if state.ended and state.started else None,
            **flattened(result_of(run) or {}),
        },
    }


def _environment(plan: PlanRecord) -> dict[str, str]:
    return {**plan.first.env, **dict.fromkeys(plan.secret_names, "a secret")}


# -- code


def _files(one: RunDir, other: RunDir) -> Iterator[FileChange]:
    mine, theirs = one.code_files(), other.code_files()
    if not mine or not theirs:
        return  # the list of one run's files is missing, so only the hashes of the code are compared
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


def _text(run: RunDir, path: str, entry: list[str]) -> list[str] | None:
    """Return the lines of a file of the submitted code; None if the file is not text, or if the run has changed it."""
    code = run.submitted_code
    try:
        if entry[0] not in "fx":
            return None
        content = read_regular(code / path, TEXT_BYTES, code)
        return content.decode().splitlines() if hashlib.sha256(content).hexdigest() == entry[1] else None
    except (OSError, ValueError):
        return None


def _unified(one: list[str] | None, other: list[str] | None, path: str) -> tuple[str, ...]:
    if one is None or other is None:
        return ()
    lines = list(difflib.unified_diff(one, other, path, path, n=2, lineterm=""))
    left = len(lines) - DIFF_LINES
    return (*lines[:DIFF_LINES], *([f"... {left} more lines"] if left > 0 else []))
