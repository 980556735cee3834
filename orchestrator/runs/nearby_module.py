"""Explains a missing module that is in a folder above the code folder on the submitting machine, and therefore was not
sent.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from orchestrator.outcome.verdict import Verdict
from orchestrator.protocol.missing_module import missing_module_in

MOST_LEVELS = 3  # the number of folders above the code folder that are searched
LAST_LINES = 3


def with_nearby_module(verdict: Verdict, code_dir: str | None) -> Verdict:
    """Return the verdict (how the run ended). If the run lacked a module that is in a folder above the code folder, the
    verdict gets a hint.
    """
    error = verdict.error or {}
    # `python -m pkg.train` writes no error file, but its last line names the module.
    words = "\n".join(verdict.tail[-LAST_LINES:]) if not error else str(error.get("message"))
    name = missing_module_in(words) if error.get("type") in (None, "ModuleNotFoundError") else ""
    if not name or code_dir is None:
        return verdict
    code = Path(code_dir)
    for folder in _above(code):
        place = next((each for each in (folder, folder / "src") if _has(each, name)), None)
        if place is not None:
            up = os.path.relpath(folder, code)
            path = os.path.relpath(place, folder)
            hint = (
                f"{name} is in {place}, outside the code folder {code}, so it was not sent: start from {folder} "
                f"(cd {up}; orch run -- env PYTHONPATH={path} torchrun {os.path.relpath(code, folder)}/SCRIPT), or set "
                f"`code.dir: {up}` and `env: {{PYTHONPATH: {path}}}` in the job"
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
    """Return whether Python would find the module in this folder. A package without `__init__.py` counts if it has
    Python files.
    """
    try:
        return (folder / f"{name}.py").is_file() or any((folder / name).glob("*.py"))
    except OSError:
        return False
