"""Static pages of some runs for a colleague: the page's own files, and one with all that they would ask a server for.

A browser loads no module from a file, so the modules are joined into one script. Secrets, the user's name and home are
taken out of all that is written, as `orch bundle` does.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from orchestrator.errors import StoreError, UsageError
from orchestrator.operations.bundle import redaction_of
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.store import RunDir, newest_runs
from orchestrator.runs.sweeps import find_runs
from orchestrator.views.reader import Note, Reader
from orchestrator.web import answers
from orchestrator.web.app import STATIC

NEWEST: Final = 20
MOST_LOGS: Final = 16  # of a run
MOST_METRICS: Final = 20
MOST_DIFFS: Final = 45  # of ten runs, each with each
_MODULES: Final = ("dom", "format", "source", "curves", "heat", "logs", "runs", "run", "diff", "sweep", "main")
_COPIED: Final = ("icon.svg", "style.css", "uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE")
Answers = dict[str, Any]


def export_pages(root: Path, note: Note, folder: Path, references: tuple[str, ...]) -> int:
    """Write the pages of these runs and sweeps (the newest ones by default) to a folder; return how many runs.

    UsageError where the folder holds something already.
    """
    named = [run for each in references for run in find_runs(root, each)] if references else newest_runs(root, NEWEST)
    runs = list({run.run_id: run for run in named}.values())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} holds something already", "name another folder: --export DIR")
        found: Answers = {}
        reader = Reader(root, note)
        for run in runs:
            found |= redaction_of(run).json(_of_run(reader, run))
        found |= _of_several(reader, runs, found)
        (folder / "data.js").write_text(f"globalThis.orchExport = {json.dumps(found, allow_nan=False)};\n")
        (folder / "page.js").write_text(_joined())
        (folder / "index.html").write_text(_index((STATIC / "index.html").read_text()))
        for name in _COPIED:
            shutil.copyfile(STATIC / name, folder / name)
    except OSError as error:
        raise StoreError(
            f"{error.filename or folder} can't be written: {error.strerror}", "name another folder"
        ) from error
    return len(runs)


def _of_run(reader: Reader, run: RunDir) -> Answers:
    """Return what the page of one run asks for."""
    where = f"/api/runs/{quote(run.run_id, safe='')}"
    page = answers.run_page(reader, run.run_id)
    del page["seen"]  # nobody follows what was exported
    found: Answers = {where: page, f"{where}/files": answers.files_page(reader, run.run_id)}
    found[f"{where}/heat"] = answers.heat(reader, run.run_id)
    first = answers.use(reader, run.run_id, None)
    found[f"{where}/use"] = first
    for name in first["measures"]:
        found[f"{where}/use?{urlencode({'measure': name})}"] = answers.use(reader, run.run_id, name)
    for attempt, rank in page["logs"][-MOST_LOGS:] or [(page["attempt"], 0)]:
        asked = {"rank": str(rank), "attempt": str(attempt)}
        found[f"{where}/log?{urlencode(asked)}"] = answers.log_page(reader, run.run_id, asked)
    page["logs"] = page["logs"][-MOST_LOGS:]
    return found | _curves(reader, [run.run_id])


def _of_several(reader: Reader, runs: list[RunDir], of_runs: Mapping[str, Any]) -> Answers:
    """Return what the pages of more than one run ask for."""
    ids = {run.run_id for run in runs}
    known = {page["row"]["run_id"]: page["row"] for page in of_runs.values() if "row" in page}
    found: Answers = {
        "/api/runs": [known.get(row["run_id"], row) for row in answers.rows(reader) if row["run_id"] in ids]
    }
    for sweep in dict.fromkeys(filter(None, map(sweep_of, sorted(ids)))):
        page = answers.sweep_page(reader, sweep, None)
        page["rows"] = [row for row in page["rows"] if row["run_id"] in ids]
        found[f"/api/sweeps/{quote(sweep, safe='')}"] = page
        found |= _curves(reader, [row["run_id"] for row in page["rows"]][:8])
    pairs = list(combinations(runs, 2))[:MOST_DIFFS]
    for one, other in [*pairs, *((other, one) for one, other in pairs)]:
        asked = urlencode({"one": one.run_id, "other": other.run_id})
        redact = redaction_of(one)
        found[f"/api/diff?{asked}"] = redact.json(answers.diff_page(reader, one.run_id, other.run_id))
        found |= _curves(reader, [one.run_id, other.run_id])
    return found


def _curves(reader: Reader, names: list[str]) -> Answers:
    """Return the curves of these runs over each other, one answer for each metric."""
    first = answers.curves(reader, names, {"metric": "loss"})
    asked = [("run", name) for name in names]
    return {
        f"/api/curves?{urlencode([*asked, ('metric', metric)])}": answers.curves(reader, names, {"metric": metric})
        for metric in dict.fromkeys(["loss", *first["names"][:MOST_METRICS]])
    }


def _joined() -> str:
    """Return the modules as one script."""
    return "\n".join(['(() => {\n"use strict";', *(_plain(name) for name in _MODULES), "})();\n"])


def _plain(name: str) -> str:
    text = (STATIC / f"{name}.js").read_text()
    text = re.sub(r"^import .*?;\n", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^export ", "", text, flags=re.MULTILINE)


def _index(text: str) -> str:
    """Return the page with addresses beside it, and a policy that lets it ask nobody for anything."""
    policy = "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file:"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<meta name="referrer"'
    module = '<script src="/static/main.js" type="module"></script>'
    scripts = '<script src="data.js" defer></script>\n<script src="page.js" defer></script>'
    return text.replace('<meta name="referrer"', head).replace(module, scripts).replace("/static/", "")
