"""Explains why a failed run lacked a file that exists in the user's code folder, for example because an ignore file
excluded it.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.errors import OrchError
from orchestrator.outcome.verdict import Outcome, Verdict
from orchestrator.runs.store import RunDir

_MISSING: Final = re.compile(
    r"No such file|FileNotFoundError|not found|does(n't| not) exist|cannot open|can't open", re.I
)
_PATH: Final = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"|([^\s'\"(),:;]+[/.][^\s'\"(),:;]+)")
MOST_LOOKED_AT: Final = 50
LAST_LINES: Final = 5


def with_missing_file(run: RunDir, verdict: Verdict) -> Verdict:
    """Return the verdict (how the run ended). If its error names a file that is in the code folder but was not sent
    with the run, the verdict gets a hint.
    """
    if verdict.outcome is not Outcome.FAILED or verdict.rank is None:
        return verdict
    error = verdict.error or {}
    words = "\n".join([str(error.get("type", "")), str(error.get("message", "")), *verdict.tail[-LAST_LINES:]])
    if not _MISSING.search(words):
        return verdict
    try:
        hint = _why_not_there(run, words)
    except (OrchError, OSError, ValueError, TypeError, KeyError):  # the ignore file is gone, or the record is damaged
        hint = ""
    return replace(verdict, hint=hint) if hint else verdict


def _why_not_there(run: RunDir, words: str) -> str:
    from orchestrator.runs.files.ignore_rules import Rules

    record, sent = run.record(), run.code_files()
    if not record.code_dir or not isinstance(code := record.job.get("code"), dict):
        return ""
    here, there = Path(record.code_dir), run.plan().first.code_dir
    for path in _paths(words, [there.removeprefix("~/"), record.code_dir]):
        if path in sent or not (here / path).exists():
            continue
        part, why = Rules.of(here, str(code.get("ignore", ".orchignore"))).ignored_part(path)
        link = next((each for each in Path(path).parents if (here / each).is_symlink()), None)
        if link is not None:
            hint = "give the script a path that exists on the nodes"
            return f"{link} in {here} is a link to a folder, and was not sent: {hint}"
        if why:
            return (
                f"{path} is in {here} and was not sent: {why}; "
                f"to send it, write !{part} into .orchignore, or name it in inputs: of the job"
            )
    return ""


def _paths(words: str, folders: list[str]) -> list[str]:
    """Return the paths, below the code folder, that an error message may mean. `folders` are the code folder's paths
    on the nodes and on this machine.
    """
    found = []
    for match in list(_PATH.finditer(words))[:MOST_LOOKED_AT]:
        text = next(filter(None, match.groups()))
        for folder in filter(None, folders):
            _, inside, below = text.partition(f"{folder}/")
            text = below if inside else text
        path = os.path.normpath(text)
        if not path.startswith(("/", "..", "~")) and path != "." and "\0" not in path:
            found.append(path)
    return list(dict.fromkeys(found))
