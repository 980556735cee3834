"""Turns the error message of a qsub that refused a job into a sentence that names the field to change. This module has
no side effects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import BackendError


@dataclass(frozen=True)
class Refusals:
    """The known error messages of a scheduler's qsub.

    is_up: a hint on how to check that the server is up. table: words of a message, their meaning, and a hint. `{name}`
    in a meaning is replaced by the profile's field of that name.
    """

    title: str
    is_up: str
    table: Sequence[tuple[str, str, str]]

    def error(self, said: str, profile: Mapping[str, Any], *, is_unreachable: bool) -> BackendError:
        """Return the error for the output of qsub. If the output contains no known message, the error has the whole
        output.
        """
        lines = [line.strip() for line in said.splitlines() if line.strip() and line.strip() != "Exiting."]
        last = "; ".join(line.removeprefix("Unable to run job: ").removeprefix("qsub: ") for line in lines)
        last = last or "it did not say why"
        for words, meaning, hint in self.table:
            if words.lower() in said.lower():
                return BackendError(f"{meaning.format(**profile)} (qsub: {last})", hint)
        if is_unreachable:
            return BackendError(f"{self.title}'s server can't be reached: {last}", self.is_up, transient=True)
        return BackendError(
            f"qsub refused the job: {last}", "orch submit --dry-run shows the script that qsub was given"
        )
