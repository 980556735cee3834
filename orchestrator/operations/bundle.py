"""Writes an archive for a bug report, with records, events and the last lines of logs, but without secrets, code or
checkpoints.

A program may print any text to its log. From a log, only known secrets and the values of names that look secret can be
removed.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import platform
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import StoreError, UsageError
from orchestrator.protocol.files import PRIVATE
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.reading import read_part
from orchestrator.runs.files.checkpoints import all_of
from orchestrator.runs.files.logs import Selection, log_files, offset_of_last
from orchestrator.runs.leaving import redaction_of
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.store import RunDir, deliver
from orchestrator.version import __version__

LAST_LINES: Final = 200
MAX_BYTES: Final = 4 << 20  # the most bytes of a file that are archived; the end of a longer file is taken
# An archive contains only these files, so that later versions of orch don't add files to it by accident.
RECORDS: Final = (
    "run.json",
    "plan.json",
    "verdict.json",
    "handle.json",
    "cancel.json",
    "code.json",
    "result.json",
    "labels.json",
)
LINES: Final = ("events.jsonl", "nodes/*/events.jsonl")
TEXTS: Final = (
    "nodes/*/agent.log", "nodes/*/launcher.log", "nodes/*/attempt_*/error_*.json", "nodes/*/attempt_*/stacks*",
)  # fmt: skip


def bundle(run: RunDir, output: Path) -> tuple[str, list[tuple[str, int]]]:
    """Write the archive. Return its path, and (name, size) of its members. Raises UsageError if the file exists."""
    if output.exists():
        raise UsageError(f"{output} exists already", "give another name: --output FILE")
    redact = redaction_of(run)
    members: list[tuple[str, int]] = []
    buffer = io.BytesIO()
    with gzip.GzipFile("", "wb", fileobj=buffer, mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for name, text in _members(run, redact):
            content = text.encode("utf-8", "replace")
            # owner and times are left out, because they identify the user
            entry = tarfile.TarInfo(f"{redact.text(run.run_id)}/{name}")
            entry.size, entry.mtime, entry.mode = len(content), 0, 0o644
            archive.addfile(entry, io.BytesIO(content))
            members.append((name, len(content)))
    return deliver(output, buffer.getvalue(), mode=PRIVATE), members


def _members(run: RunDir, redact: Redaction) -> Iterator[tuple[str, str]]:
    yield "about.json", json.dumps(redact.json(_about(run)), indent=1)
    for name in RECORDS:
        with contextlib.suppress(OSError):
            yield name, _json(run.path / name, redact)
    yield "checkpoints.json", json.dumps(redact.json(_checkpoints(run)), indent=1)
    for patterns, clean in ((LINES, redact.lines), (TEXTS, redact.text)):
        for pattern in patterns:
            yield from _files(run, pattern, clean)
    for log in log_files(run, Selection(everything=True)):
        with contextlib.suppress(FileNotFoundError, StoreError), log.opened() as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(offset_of_last(log, LAST_LINES), end - MAX_BYTES))
            text = _whole_lines(file.read(MAX_BYTES))
            yield str(log.path.relative_to(run.path)), redact.text(text)


def _about(run: RunDir) -> Mapping[str, Any]:
    return {
        "run_id": run.run_id,
        "orch": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "time": round(time.time()),
        "redacted": "values of secrets and of what is called TOKEN, KEY, SECRET, PASSWORD and the like; home; user",
    }


def _json(path: Path, redact: Redaction) -> str:
    text = read_part(path, -MAX_BYTES, MAX_BYTES, path.parent).decode("utf-8", "replace")
    try:
        return json.dumps(redact.json(parse_json(text)), indent=1)
    except ValueError:  # the file is damaged, which may be the subject of the report
        return redact.text(text)


def _checkpoints(run: RunDir) -> list[dict[str, Any]]:
    try:
        return [each.to_json() for each in all_of(run)]
    except StoreError:
        return []


def _files(run: RunDir, pattern: str, clean: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    for path in sorted(run.path.glob(pattern)):
        with contextlib.suppress(OSError):
            text = _whole_lines(read_part(path, -MAX_BYTES, MAX_BYTES, run.path))
            yield str(path.relative_to(run.path)), clean(text)


def _whole_lines(data: bytes) -> str:
    """Return the last lines of a file. An incomplete first line is left out, because it may contain half of a
    secret.
    """
    if len(data) == MAX_BYTES:
        data = data.partition(b"\n")[2] or data
    return data.decode("utf-8", "replace")
