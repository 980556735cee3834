"""The types of the table of failures: a rule, and the facts about a failure that a rule tests."""

from __future__ import annotations

import re
from typing import Callable, NamedTuple, Union

from orchestrator.outcome.sentences import error_of
from orchestrator.outcome.verdict import Cause, Outcome, Party
from orchestrator.protocol.rank_reports import Culprit, RankEnd, RankError

NO_TERMINAL = "Inappropriate ioctl for device"  # printed by a program that a rank started


class Seen(NamedTuple):
    """The facts about a failure: how the culprit ended (if a rank is to blame), and the error message."""

    exit: RankEnd | None
    words: str
    folder_lost: bool = False

    @staticmethod
    def of(end: RankEnd, *, folder_lost: bool = False) -> Seen:
        """Collect the facts about a rank's end. The message is the rank's error or, without an error, the last lines of
        its log.
        """
        if end.unsaved:
            return Seen(end, end.unsaved, folder_lost)
        seen = Seen(end, "", folder_lost)
        lacks = [seen.culprit.lacks] if seen.culprit is not None and seen.culprit.lacks else []
        said = [str(seen.error.type), str(seen.error.message)] if seen.error is not None else end.tail[-5:]
        terminal = [line for line in end.tail if NO_TERMINAL in line]
        return seen._replace(words=" ".join([*lacks, *terminal, *said]))

    @property
    def culprit(self) -> Culprit | None:
        """Return the leader's record of the rank's end, or None if only the launcher of the rank's node has reported
        it.
        """
        return self.exit if isinstance(self.exit, Culprit) else None

    @property
    def error(self) -> RankError | None:
        """Return the rank's error, or None if the rank reported no error or an empty one."""
        return error_of(self.exit) if self.exit is not None else None

    @property
    def error_type(self) -> str | None:
        """Return the type name of the rank's error, or None if there is no error."""
        return self.error.type if self.error is not None else None


Hint = Union[str, Callable[[Seen], str]]


class Rule(NamedTuple):
    """A kind of failure. It applies if `test` returns True for the facts, or if `pattern` matches the error message."""

    what: str  # the row in docs/failures.md; "" for a rule that only gives a hint
    cause: Cause = Cause.NONE  # if NONE, a later rule decides the cause
    culprit: Party = Party.RANK
    hint: Hint = ""
    test: Callable[[Seen], bool] | None = None
    pattern: str = ""  # searched in the message; if a rank ended, it gives a hint, but never the cause

    @property
    def outcome(self) -> str:
        """Return the outcome that a node records if this rule decides its end."""
        return self.cause if self.cause in (Cause.CANCELLED, Cause.PREEMPTED, Cause.TIMEOUT) else Outcome.FAILED

    def applies(self, seen: Seen) -> bool:
        """Return whether the rule applies to these facts."""
        if self.test is not None:
            return self.test(seen)
        return bool(self.pattern) and re.search(self.pattern, seen.words, re.IGNORECASE) is not None
