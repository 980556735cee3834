"""A rule of the table of failures, and the facts that it is applied to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Union

from orchestrator.outcome.verdict import Cause, Event, Outcome, Party

NO_TERMINAL = "Inappropriate ioctl for device"  # printed by a program that a rank started


class Seen(NamedTuple):
    """The facts about a failure: the exit report of the culprit, if it is a rank, and the error in words."""

    exit: Event
    words: str
    folder_lost: bool = False

    @staticmethod
    def of(exit_report: Event, *, folder_lost: bool = False) -> Seen:
        """Return what an exit report shows: the rank's error, else its last lines."""
        if exit_report.get("unsaved"):
            return Seen(exit_report, str(exit_report["unsaved"]), folder_lost)
        seen = Seen(exit_report, "", folder_lost)
        error, lines = seen.error, seen.tail
        lacks = [str(exit_report["lacks"])] if exit_report.get("lacks") else []  # the nodes that lack a module
        said = [str(error.get("type")), str(error.get("message"))] if error else lines[-5:]
        terminal = [line for line in lines if NO_TERMINAL in line]
        return seen._replace(words=" ".join([*lacks, *terminal, *said]))

    @property
    def tail(self) -> list[str]:
        """Return the rank's last lines."""
        tail = self.exit.get("tail")
        return [str(line) for line in tail] if isinstance(tail, (list, tuple)) else []

    @property
    def error(self) -> Mapping[str, Any]:
        """Return the rank's error, or an empty mapping."""
        error = self.exit.get("error")
        return error if isinstance(error, Mapping) else {}


Hint = Union[str, Callable[[Seen], str]]


class Rule(NamedTuple):
    """One kind of failure. It applies if `test` is true of what is seen, or if `pattern` is in the words."""

    what: str  # the row of docs/failures.md; "" for a rule that only gives a hint
    cause: Cause = Cause.NONE  # NONE: a later rule decides
    culprit: Party = Party.RANK
    hint: Hint = ""
    test: Callable[[Seen], bool] | None = None
    pattern: str = ""

    @property
    def outcome(self) -> str:
        """Return the outcome that a node records for an end by this rule."""
        return self.cause if self.cause in (Cause.CANCELLED, Cause.PREEMPTED, Cause.TIMEOUT) else Outcome.FAILED

    def applies(self, seen: Seen) -> bool:
        """Tell whether this failure is seen."""
        if self.test is not None:
            return self.test(seen)
        return bool(self.pattern) and re.search(self.pattern, seen.words, re.IGNORECASE) is not None
