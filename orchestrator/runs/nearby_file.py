"""Explains a missing file that is outside of the code folder on the submitting machine, and therefore was not sent with
the run.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from orchestrator.outcome.verdict import Outcome, Verdict

MOST_LOOKED_AT = 20
# A script that doesn't find its data set often tries to download it, and fails there.
_MISSING = re.compile(
    r"No such file|FileNotFoundError|not found|does(n't| not) exist|download|urlopen|HTTPError|URLError", re.IGNORECASE
)
LAST_LINES = 5
_UP = re.compile(r"(['\"])((?:\./)?(?:\.\./)+[^'\"\n]+)\1")


def with_nearby_file(verdict: Verdict, code_dir: str | None) -> Verdict:
    """Return the verdict (how the run ended). If its error names a path with `..` that exists on this machine, the
    verdict gets a hint.
    """
    error = verdict.error or {}
    # The traceback of an error is ignored, because it may contain `download=True` although no download failed.
    what = f"{error.get('type')}: {error.get('message')}" if error else "\n".join(verdict.tail[-LAST_LINES:])
    if verdict.outcome is not Outcome.FAILED or code_dir is None or not _MISSING.search(what):
        return verdict
    words = "\n".join([*map(str, error.values()), *verdict.tail])
    code = Path(code_dir)
    for match in list(_UP.finditer(words))[:MOST_LOOKED_AT]:
        found = _outside(code, match[2])
        if found is not None:
            top = os.path.commonpath([code, found])
            below = os.path.relpath(code, top)
            hint = (
                f"{match[2]} is {found} on this machine, but only {code} was sent to the nodes: submit from {top} with "
                f"a command that changes the folder, as in: orch run -- bash -c 'cd {below} && python SCRIPT'"
            )
            return replace(verdict, hint=hint)
    return verdict


def _outside(code: Path, path: str) -> Path | None:
    """Resolve a path relative to the code folder. Return None if the result is inside the code folder or does not
    exist.
    """
    try:
        found = Path(os.path.normpath(code / path))
        return found if not found.is_relative_to(code) and found != Path("/") and found.exists() else None
    except (OSError, ValueError):
        return None
