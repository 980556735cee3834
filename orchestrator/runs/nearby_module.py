"""Finds a module that a run lacked above the code folder on the submitting machine."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from orchestrator.runs.state import Verdict

MOST_LEVELS = 3  # folders above the code folder that are searched
_MISSING = re.compile(r"No module named '?(\w+)")


def with_nearby_module(verdict: Verdict, code_dir: str | None) -> Verdict:
    """Return the verdict. If a missing module is above the code folder, a hint says where."""
    error = verdict.error or {}
    found = _MISSING.match(str(error.get("message"))) if error.get("type") == "ModuleNotFoundError" else None
    if found is None or code_dir is None:
        return verdict
    code, name = Path(code_dir), found[1]
    for folder in _above(code):
        place = next((each for each in (folder, folder / "src") if _has(each, name)), None)
        if place is not None:
            up = os.path.relpath(folder, code)
            path = os.path.relpath(place, folder)
            hint = (
                f"{name} is in {place}, and only {code} was sent along: submit in {folder}, or set code.dir: {up} "
                f"in the job; env: {{PYTHONPATH: {path}}} lets a script in a folder below import it"
            )
            return replace(verdict, hint=hint)
    return verdict


def _above(code: Path) -> list[Path]:
    """Return the folders above the code folder, up to the root of its repository."""
    found: list[Path] = []
    for inner, folder in zip([code, *code.parents], list(code.parents)[:MOST_LEVELS], strict=False):
        if (inner / ".git").exists():
            break
        found.append(folder)
    return found


def _has(folder: Path, name: str) -> bool:
    """Tell whether Python would find the module in this folder; a folder counts if Python files are in it."""
    try:
        return (folder / f"{name}.py").is_file() or any((folder / name).glob("*.py"))
    except OSError:
        return False
