"""The types of a judgement: the verdict with its outcome and cause, and the states of the nodes from which it
follows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any, Final

from orchestrator.protocol.frozen import Value
from orchestrator.protocol.str_enum import StrEnum, member_of


class Outcome(StrEnum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Cause(StrEnum):
    """The cause of an end. It decides whether another start may help, and which retry budget such a start uses up."""

    NONE = ""  # the run did not fail, or the cause is unknown
    USER_ERROR = "user_error"  # an error in the program, the job or the image, so another start would fail too
    INFRA = "infra"  # a machine, the network, the scheduler, a signal, a hang
    PREEMPTED = "preempted"  # the scheduler or somebody else requested a stop
    TIMEOUT = "timeout"  # a time limit was reached
    CANCELLED = "cancelled"  # an agent received a cancel that is not recorded here
    IDLE = "idle"  # all nodes were idle for as long as the job allows
    NO_PROGRESS = "no_progress"  # several starts in a row made no new checkpoint
    CHECKPOINT = "checkpoint"  # training is done, but its final weights were not saved
    NO_RETRY = "no_retry"  # a rank ruled out another start (exit code 93), or all programs had ended
    STOPPED_EARLY = "stopped_early"  # the search cancelled the run, because other trials were better at the same step

    @property
    def budget(self) -> str | None:
        """Return the name of the `retry` budget that a restart after this cause uses up; None if there is no budget for
        this cause.
        """
        return self.value if self in _WITH_BUDGET else None


_WITH_BUDGET: Final = (Cause.USER_ERROR, Cause.INFRA, Cause.PREEMPTED, Cause.TIMEOUT)


class Party(StrEnum):
    """The person or part that caused the end of a run."""

    NOBODY = ""
    RANK = "rank"  # the program of one rank
    NODE = "node"  # an agent, a launcher or the network of a node
    MACHINE = "machine"  # a GPU or a driver: the next start should use another machine
    SCHEDULER = "scheduler"  # the scheduler, or somebody else who stopped the run
    USER = "user"  # a cancel, a limit of the job, or an error in the job or profile


def cause_named(name: object) -> Cause:
    """Return the cause with the name that a node recorded, or NONE if this version does not know the name."""
    return member_of(Cause, name) or Cause.NONE


_NONE: Final = type(None)
_FIELDS: Final = {
    "reason": (str,), "attempt": (int,), "rank": (int, _NONE), "node": (int, _NONE), "host": (str,),
    "code": (int, _NONE), "signal": (str, _NONE), "error": (dict, _NONE), "tail": (list,), "hint": (str,),
    "survivors": (list,),
}  # fmt: skip
_PLACED: Final = re.compile(r"(rank \d+ on node \d+ \([^()]*\)) ended with (.+)")


class Verdict(Value):
    """How a run ended and why. If no rank is to blame, the fields about the rank are empty."""

    outcome: Outcome
    cause: Cause = Cause.NONE
    reason: str = ""
    attempt: int = 0
    rank: int | None = None
    node: int | None = None
    host: str = ""
    code: int | None = None
    signal: str | None = None
    error: dict[str, Any] | None = None
    tail: tuple[str, ...] = ()
    hint: str = ""
    survivors: tuple[int, ...] = ()
    blames: Party = field(default=Party.NOBODY, compare=False)

    @property
    def is_stopped_early(self) -> bool:
        """Return whether the run's search ended the run early, as intended."""
        return self.cause is Cause.STOPPED_EARLY

    @property
    def why_and_where(self) -> tuple[str, str]:
        """Return (first line of the reason, place), with a place such as `rank 2 on node 0 (vm)`. The line does not
        repeat the place.
        """
        line = (self.reason.splitlines() or [""])[0]
        found = _PLACED.fullmatch(line)
        return (found[2], found[1]) if found else (line, "")

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON types."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Verdict:
        """Parse the verdict that `to_json` wrote. Fields that are damaged or from another version are dropped."""
        known: dict[str, Any] = {
            name: data.get(name) for name, types in _FIELDS.items() if type(data.get(name)) in types
        }
        return Verdict(
            member_of(Outcome, data.get("outcome")) or Outcome.FAILED,
            cause_named(data.get("cause")),
            blames=member_of(Party, data.get("blames")) or Party.NOBODY,
            **{
                **known,
                "tail": tuple(str(line) for line in known.get("tail") or ()),
                "survivors": tuple(known.get("survivors") or ()),
            },
        )


class NodeStatus(StrEnum):
    """The status of one node of a run."""

    WAITING = "waiting"  # its agent has not reported yet
    STARTING = "starting"  # its agent has reported
    JOINED = "joined"  # its agent has joined node 0's gang
    RUNNING = "running"  # its ranks were started
    ENDED = "ended"  # its agent has written its last event
    LOST = "lost"  # its agent is gone without a last event

    @property
    def final(self) -> bool:
        """Return whether the node's agent will report nothing more."""
        return self in (NodeStatus.ENDED, NodeStatus.LOST)


class Unreachable(Value):
    """A machine that can't be reached: since when (wall clock), and why. The newest data about its node is from that
    time.
    """

    since: float
    why: str = ""


class NodeState(Value):
    """The state of a node."""

    node: int
    host: str
    state: NodeStatus
    ranks: tuple[int, int] | None = None  # [first, last + 1)
    exits: dict[int, str] = field(default_factory=dict)
    unreachable: Unreachable | None = None
