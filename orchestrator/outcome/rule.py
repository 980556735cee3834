"""A rule of the table of failures, and the facts that it is applied to."""

from __future__ import annotations

import re
from typing import Callable, NamedTuple, Union

from orchestrator.outcome.sentences import error_of
from orchestrator.outcome.verdict import Cause, Outcome, Party
from orchestrator.protocol.rank_reports import Culprit, RankEnd, RankError

NO_TERMINAL = "Inappropriate ioctl for device"  # printed by a program that a rank started


class Seen(NamedTuple):
    """The facts about a failure: the end of the culprit, if it is a rank, and the error in words."""

    exit: RankEnd | None
    words: str
    folder_lost: bool = False

    @staticmethod
    def of(end: RankEnd, *, folder_lost: bool = False) -> Seen:
        """Return the facts that a rank's end shows: the rank's error, else its last lines."""
        if end.unsaved:
            return Seen(end, end.unsaved, folder_lost)
        seen = Seen(end, "", folder_lost)
        lacks = [seen.culprit.lacks] if seen.culprit is not None and seen.culprit.lacks else []
        said = [str(seen.error.type), str(seen.error.message)] if seen.error is not None else end.tail[-5:]
        terminal = [line for line in end.tail if NO_TERMINAL in line]
        return seen._replace(words=" ".join([*lacks, *terminal, *said]))

    @property
    def culprit(self) -> Culprit | None:
        """Return the end as the leader knows it; None if only the node's launcher has reported it."""
        return self.exit if isinstance(self.exit, Culprit) else None

    @property
    def error(self) -> RankError | None:
        """Return the rank's error; None if the rank reported no error, or an empty one."""
        return error_of(self.exit) if self.exit is not None else None

    @property
    def error_type(self) -> str | None:
        """Return the name of the rank's error; None if there is no error."""
        return self.error.type if self.error is not None else None


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
