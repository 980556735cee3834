"""Run ids: a name and six random characters, plus a number for a sweep's point."""

from __future__ import annotations

import re
from typing import Final

from orchestrator.errors import BackendError

ALPHABET: Final = "abcdefghjkmnpqrstuvwxyz23456789"  # without characters that look alike
CHARACTERS: Final = 6
_POINT: Final = re.compile(r"(.+-[a-z2-9]{6})\.(\d+)")  # an id that ends in a run's six characters, and a number

_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def is_run_id(text: object) -> bool:
    """Return whether a text can be a run's id. It must be a single path component other than `.` and `..`, and must not
    look like an option.
    """
    return isinstance(text, str) and _RUN_ID.fullmatch(text) is not None


def run_id_from(text: object, source: str) -> str:
    """Validate a run id that another machine or program sent. Raises BackendError, which names the source, if it is
    not valid.
    """
    if not is_run_id(text):
        raise BackendError(f"{source} sent {str(text)[:80]!r}, which is not the id of a run")
    return str(text)


def point_id(sweep: str, index: int) -> str:
    """Return the run id of a sweep's point."""
    return f"{sweep}.{index}"


def sweep_of(run_id: str) -> str | None:
    """Return the sweep in a point's run id, or None for a run that is not a point."""
    match = _POINT.fullmatch(run_id)
    return match[1] if match else None


def index_of(run_id: str) -> int:
    """Return a point's number in its sweep, or 0 for a run that is not a point."""
    return int(run_id.rpartition(".")[2]) if sweep_of(run_id) is not None else 0


def name_of(run_id: str) -> str:
    """Return the name in the id of a run or a point, without the six random characters."""
    name, _, characters = (sweep_of(run_id) or run_id).rpartition("-")
    return name if len(characters) == CHARACTERS and set(characters) <= set(ALPHABET) else ""


def new_run_id(name: str) -> str:
    """Return a unique run id: `name` and six random characters. Users may type a unique prefix of it."""
    import secrets

    return f"{name}-{''.join(secrets.choice(ALPHABET) for _ in range(CHARACTERS))}"
