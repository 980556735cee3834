"""Run ids: a name and six random characters; of a sweep's point, with its number."""

from __future__ import annotations

import re
from typing import Final

from orchestrator.errors import BackendError

ALPHABET: Final = "abcdefghjkmnpqrstuvwxyz23456789"  # without those that look alike
CHARACTERS: Final = 6
_POINT: Final = re.compile(r"(.+-[a-z2-9]{6})\.(\d+)")  # what ends in a run's six characters, and a number

_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def is_run_id(text: object) -> bool:
    """Return whether this can be a run's id: one part of a path that leads nowhere else, and no option."""
    return isinstance(text, str) and _RUN_ID.fullmatch(text) is not None


def run_id_from(text: object, source: str) -> str:
    """Return a run id that another machine or program has told; BackendError, which names the source, for no run id."""
    if not is_run_id(text):
        raise BackendError(f"{source} speaks of a run {str(text)[:80]!r}, and no run is called that")
    return str(text)


def point_id(sweep: str, index: int) -> str:
    """Return the run id of a point."""
    return f"{sweep}.{index}"


def sweep_of(run_id: str) -> str | None:
    """Return the sweep that a run is a point of, by its id; None where it is a run of its own."""
    match = _POINT.fullmatch(run_id)
    return match[1] if match else None


def name_of(run_id: str) -> str:
    """Return what a run, or the sweep that it is a point of, is called without its six characters."""
    name, _, characters = (sweep_of(run_id) or run_id).rpartition("-")
    return name if len(characters) == CHARACTERS and set(characters) <= set(ALPHABET) else ""


def new_run_id(name: str) -> str:
    """Return `name` and six random characters: short to type by its prefix, and unlike every other run's."""
    import secrets  # noqa: PLC0415 (4 ms that only a submit needs)

    return f"{name}-{''.join(secrets.choice(ALPHABET) for _ in range(CHARACTERS))}"
