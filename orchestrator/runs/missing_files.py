"""Explains why a failed run lacked a file or module that exists on the submitting machine: an ignore file excluded it,
or it is outside the code folder, and therefore was not sent with the run.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from orchestrator.errors import OrchError
from orchestrator.outcome.verdict import Outcome, Verdict
from orchestrator.protocol.rank_reports import missing_module_in
from orchestrator.runs.store import RunDir

_NO_FILE: Final = r"No such file|FileNotFoundError|not found|does(n't| not) exist"
_MISSING: Final = re.compile(rf"{_NO_FILE}|cannot open|can't open", re.I)
# A script that doesn't find its data set often tries to download it, and fails there.
_MISSING_OUTSIDE: Final = re.compile(rf"{_NO_FILE}|download|urlopen|HTTPError|URLError", re.I)
_PATH: Final = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"|([^\s'\"(),:;]+[/.][^\s'\"(),:;]+)")
_UP: Final = re.compile(r"(['\"])((?:\./)?(?:\.\./)+[^'\"\n]+)\1")
MOST_PATHS: Final = 50  # paths of an error message that are looked at
MOST_PATHS_OUTSIDE: Final = 20
MOST_LEVELS: Final = 3  # the number of folders above the code folder that are searched for a module
LAST_LINES: Final = 5  # of a rank's output, which may name a file
LAST_LINES_OF_PYTHON: Final = 3  # which may name a module


def explained(run: RunDir, verdict: Verdict) -> Verdict:
    """Return the verdict (the run's final result), with a hint if a rank did not find a file or a module that is on
    this machine.
    """
    if verdict.outcome is not Outcome.FAILED or verdict.rank is None:
        return verdict
    hint, code_dir = _of_unsent_file(run, verdict), run.record().code_dir
    if not hint and code_dir is not None:  # these are less certain
        hint = _of_nearby_file(verdict, Path(code_dir)) or _of_nearby_module(verdict, Path(code_dir))
    return replace(verdict, hint=hint) if hint else verdict


# -- a file in the code folder that was not sent


def _of_unsent_file(run: RunDir, verdict: Verdict) -> str:
    """Return a hint if the error names a file that is in the code folder but was not sent with the run, else ""."""
    error = verdict.error or {}
    words = "\n".join([str(error.get("type", "")), str(error.get("message", "")), *verdict.tail[-LAST_LINES:]])
    if not _MISSING.search(words):
        return ""
    try:
        return _why_not_there(run, words)
    except (OrchError, OSError, ValueError, TypeError, KeyError):  # the ignore file is gone, or the record is damaged
        return ""


def _why_not_there(run: RunDir, words: str) -> str:
    from orchestrator.runs.files.ignore_rules import Rules

    record, sent = run.record(), run.code_files()
    if not record.code_dir:
        return ""
    here, there = Path(record.code_dir), run.plan().first.code_dir
    for path in _paths(words, [there.removeprefix("~/"), record.code_dir]):
        if path in sent or not (here / path).exists():
            continue
        part, why = Rules.of(here, record.job.code.ignore).ignored_part(path)
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
    for match in list(_PATH.finditer(words))[:MOST_PATHS]:
        text = next(filter(None, match.groups()))
        for folder in filter(None, folders):
            _, inside, below = text.partition(f"{folder}/")
            text = below if inside else text
        path = os.path.normpath(text)
        if not path.startswith(("/", "..", "~")) and path != "." and "\0" not in path:
            found.append(path)
    return list(dict.fromkeys(found))


# -- a file outside the code folder


def _of_nearby_file(verdict: Verdict, code: Path) -> str:
    """Return a hint if the error names a path with `..` that exists on this machine, else ""."""
    error = verdict.error or {}
    # The traceback of an error is ignored, because it may contain `download=True` although no download failed.
    what = f"{error.get('type')}: {error.get('message')}" if error else "\n".join(verdict.tail[-LAST_LINES:])
    if not _MISSING_OUTSIDE.search(what):
        return ""
    words = "\n".join([*map(str, error.values()), *verdict.tail])
    for match in list(_UP.finditer(words))[:MOST_PATHS_OUTSIDE]:
        found = _outside(code, match[2])
        if found is not None:
            top = os.path.commonpath([code, found])
            below = os.path.relpath(code, top)
            return (
                f"{match[2]} is {found} on this machine, but only {code} was sent to the nodes: submit from {top} with "
                f"a command that changes the folder, as in: orch run -- bash -c 'cd {below} && python SCRIPT'"
            )
    return ""


def _outside(code: Path, path: str) -> Path | None:
    """Resolve a path relative to the code folder. Return None if the result is inside the code folder or does not
    exist.
    """
    try:
        found = Path(os.path.normpath(code / path))
        return found if not found.is_relative_to(code) and found != Path("/") and found.exists() else None
    except (OSError, ValueError):
        return None


# -- a module in a folder above the code folder


def _of_nearby_module(verdict: Verdict, code: Path) -> str:
    """Return a hint if the run lacked a module that is in a folder above the code folder, else ""."""
    error = verdict.error or {}
    # `python -m pkg.train` writes no error file, but its last line names the module.
    words = "\n".join(verdict.tail[-LAST_LINES_OF_PYTHON:]) if not error else str(error.get("message"))
    name = missing_module_in(words) if error.get("type") in (None, "ModuleNotFoundError") else ""
    for folder in _above(code) if name else ():
        place = next((each for each in (folder, folder / "src") if _has(each, name)), None)
        if place is not None:
            up = os.path.relpath(folder, code)
            path = os.path.relpath(place, folder)
            return (
                f"{name} is in {place}, outside the code folder {code}, so it was not sent: start from {folder} "
                f"(cd {up}; orch run -- env PYTHONPATH={path} torchrun {os.path.relpath(code, folder)}/SCRIPT), or set "
                f"`code.dir: {up}` and `env: {{PYTHONPATH: {path}}}` in the job"
            )
    return ""


def _above(code: Path) -> list[Path]:
    """Return the folders above the code folder, up to the root of its repository."""
    found: list[Path] = []
    for inner, folder in zip([code, *code.parents], list(code.parents)[:MOST_LEVELS], strict=False):
        if (inner / ".git").exists():
            break
        found.append(folder)
    return found


def _has(folder: Path, name: str) -> bool:
    """Return whether Python would find the module in this folder. A package without `__init__.py` counts if it has
    Python files.
    """
    try:
        return (folder / f"{name}.py").is_file() or any((folder / name).glob("*.py"))
    except OSError:
        return False
