"""Writes static pages of some runs for a colleague: the page's own files, and one file with all answers of the server.

A browser loads no JavaScript module from a local file, so the modules are joined into one script. Before the answers
are written, the secrets of all these runs, the user's name and the user's home folder are removed from the answers.
"""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from orchestrator.errors import StoreError, UsageError
from orchestrator.protocol.writing import named_folder
from orchestrator.runs.files.outputs import outputs_of
from orchestrator.runs.leaving import redaction_of
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.store import RunDir, newest_runs, said_of_named
from orchestrator.runs.sweeps import find_runs
from orchestrator.views.reader import Note, Reader
from orchestrator.web import answers, contents
from orchestrator.web.app import STATIC

NEWEST: Final = 20
MOST_LOGS: Final = 16  # logs of one run
MOST_METRICS: Final = 20
MOST_TEXTS: Final = 50  # text files of one run
MOST_OF_A_TEXT: Final = 64 << 10  # the most bytes of a text file
MOST_DIFFS: Final = 45  # the number of pairs of ten runs
_COPIED: Final = ("icon.svg", "style.css", "runs.css", "run.css", "uPlot.iife.min.js", "uPlot.min.css", "uPlot.LICENSE")
_IMPORT: Final = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?function|const|class)", re.MULTILINE)
_EXPORTED: Final = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
Words = tuple[str, ...]


class Asked(NamedTuple):
    """One request of the page, before its words are redacted and encoded as a URL."""

    path: Words  # the parts of the path after /api
    query: tuple[tuple[str, str], ...] = ()

    def address(self, redact: Redaction) -> str:
        """Return the URL that the page requests. Its words are redacted, and encoded in the same way as by browsers."""
        path = "/".join(quote(redact.text(word), safe="!'()*") for word in self.path)
        query = urlencode([(name, redact.text(value)) for name, value in self.query], safe="*").replace("~", "%7E")
        return f"/api/{path}?{query}" if query else f"/api/{path}"


Answers = dict[Asked, Any]


def runs_to_export(root: Path, references: tuple[str, ...]) -> list[RunDir]:
    """Return the named runs and all runs of the named sweeps, without duplicates. If none is named, return the newest
    runs.
    """
    named = [run for each in references for run in find_runs(root, each)] if references else newest_runs(root, NEWEST)
    return list({run.run_id: run for run in named}.values())


def export_pages(root: Path, note: Note, folder: Path, runs: list[RunDir]) -> None:
    """Write the pages of these runs to a folder. Raises UsageError if the folder is not empty or not the user's."""
    with said_of_named(folder), named_folder(folder) as named:
        if named.names():
            raise UsageError(f"{folder} is not empty", "name another folder: --export DIR")
        found: Answers = {}
        reader = Reader(root, note, has_facts=True)
        for run in runs:
            found |= _of_run(reader, run)
        found |= _of_several(reader, runs, found)
        redact = redaction_of(*runs)
        shown = {asked.address(redact): redact.json(answer) for asked, answer in found.items()}
        named.write("data.js", f"globalThis.orchExport = {json.dumps(shown, allow_nan=False)};\n".encode())
        named.write("page.js", _joined().encode())
        named.write("index.html", _index((STATIC / "index.html").read_text()).encode())
        for name in _COPIED:
            named.write(name, (STATIC / name).read_bytes())


def _of_run(reader: Reader, run: RunDir) -> Answers:
    """Return the requests that the page of one run makes, with their answers."""
    where = ("runs", run.run_id)
    page = answers.run_page(reader, run.run_id)
    found: Answers = {Asked(where): page}
    found |= {Asked((*where, name)): answer(reader, run.run_id) for name, answer in answers.OF_RUN.items()}
    found[Asked(("trends",), (("run", run.run_id),))] = answers.trends(reader, [run.run_id])
    found[Asked((*where, "use"))] = use = answers.use(reader, run.run_id, None)
    for name in use["measures"]:
        found[Asked((*where, "use"), (("measure", name),))] = answers.use(reader, run.run_id, name)
    for attempt, rank in page["logs"][-MOST_LOGS:] or [(page["attempt"], 0)]:
        asked = {"rank": str(rank), "attempt": str(attempt)}
        found[Asked((*where, "log"), tuple(asked.items()))] = answers.log_page(reader, run.run_id, asked)
    page["logs"] = page["logs"][-MOST_LOGS:]
    return found | _texts(reader, run) | _curves(reader, run.run_id)


def _texts(reader: Reader, run: RunDir) -> Answers:
    """Return the outputs of a run that are short texts. Other outputs are not exported, because they can't be
    redacted.
    """
    found: Answers = {}
    for output in outputs_of(run):
        if output.bytes > MOST_OF_A_TEXT or len(found) >= MOST_TEXTS:
            continue
        try:
            text = contents.part_of(reader, run.run_id, {"path": output.path}).data.decode()
        except (StoreError, UnicodeDecodeError):
            continue
        if "\0" not in text:
            found[Asked(("runs", run.run_id, "content"), (("path", output.path),))] = {"text": text}
    return found


def _of_several(reader: Reader, runs: list[RunDir], of_runs: Answers) -> Answers:
    """Return the requests that pages about several runs make, with their answers."""
    ids = {run.run_id for run in runs}
    known = {page["row"]["run_id"]: page["row"] for page in of_runs.values() if "row" in page}
    found: Answers = {
        Asked(("runs",)): [known.get(row["run_id"], row) for row in answers.rows(reader) if row["run_id"] in ids]
    }
    for sweep in dict.fromkeys(filter(None, map(sweep_of, sorted(ids)))):
        page = answers.sweep_page(reader, sweep, None)
        page["rows"] = [row for row in page["rows"] if row["run_id"] in ids]
        found[Asked(("sweeps", sweep))] = page
    pairs = list(combinations(runs, 2))[:MOST_DIFFS]
    for one, other in [*pairs, *((other, one) for one, other in pairs)]:
        asked = Asked(("diff",), (("one", one.run_id), ("other", other.run_id)))
        found[asked] = answers.diff_page(reader, one.run_id, other.run_id)
    return found


def _curves(reader: Reader, name: str) -> Answers:
    """Return the requests for the curves of a run, one for each metric, with their answers. The exported page combines
    the curves of several runs.
    """
    first = answers.curves(reader, [name], [], {})
    return {
        Asked(("curves",), (("run", name), ("metric", metric))): answers.curves(reader, [name], [metric], {})
        for metric in dict.fromkeys(["loss", *first["names"], *first["kinds"]][:MOST_METRICS])
    }


def _joined() -> str:
    """Return the page's JavaScript modules as one script."""
    modules: dict[str, str] = {}
    _as_function("main", modules)
    return "\n".join(['(() => {\n"use strict";\nconst modules = {};', *modules.values(), "})();\n"])


def _as_function(name: str, modules: dict[str, str]) -> None:
    """Add a JavaScript module to `modules`, after the modules that it imports. Each module becomes a function that
    returns the module's exports.
    """
    text = (STATIC / f"{name}.js").read_text()
    for imported in _IMPORT.finditer(text):
        if imported[2] not in modules:
            _as_function(imported[2], modules)
    plain = _EXPORT.sub("", _IMPORT.sub(r"const {\1} = modules.\2;", text))
    exports = ", ".join(_EXPORTED.findall(text))
    modules[name] = f"modules.{name} = (() => {{\n{plain}return {{ {exports} }};\n}})();"


def _index(text: str) -> str:
    """Return the page with relative URLs, and with a content security policy that forbids all requests to servers."""
    policy = "default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file: blob:"
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<meta name="referrer"'
    module = '<script src="/static/main.js" type="module"></script>'
    scripts = '<script src="data.js" defer></script>\n<script src="page.js" defer></script>'
    return text.replace('<meta name="referrer"', head).replace(module, scripts).replace("/static/", "")
