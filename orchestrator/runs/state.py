"""What is known of a run at one moment: its RunState, its nodes' states, and its Verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

Event = Mapping[str, Any]


class RunStatus(StrEnum):
    """Says how far a run is; what `orch status` shows, and what files and JSON hold."""

    SUBMITTING = "submitting"  # recorded; whoever submits it is at work, or was killed at it
    PENDING = "pending"  # handed over: it waits in a queue, or for its agents' first words
    STARTING = "starting"  # an agent has spoken; the ranks have not been told to start
    RUNNING = "running"  # the ranks of an attempt were told to start
    RESTARTING = "restarting"  # an attempt or a start of the agents has failed, and another follows
    STOPPING = "stopping"  # it was asked to stop
    FINISHING = "finishing"  # its ranks have ended by themselves; logs, outputs and checkpoints are being copied
    SUCCEEDED = "succeeded"  # every rank ended well
    FAILED = "failed"  # its verdict says why
    CANCELLED = "cancelled"  # somebody asked for its end
    UNREADABLE = "unreadable"  # its record can't be read: nothing is known of it

    @property
    def final(self) -> bool:
        """Tell whether the run has ended."""
        return self in (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED)


FINAL: Final = tuple(status for status in RunStatus if status.final)


class NodeStatus(StrEnum):
    """Says how far one node of a run is."""

    WAITING = "waiting"  # its agent has not spoken yet
    STARTING = "starting"  # its agent has spoken
    JOINED = "joined"  # its agent has joined node 0's gang
    RUNNING = "running"  # its ranks were started
    ENDED = "ended"  # its agent has said its last words
    LOST = "lost"  # its agent is gone without them

    @property
    def final(self) -> bool:
        """Tell whether nothing more will come from the node."""
        return self in (NodeStatus.ENDED, NodeStatus.LOST)


class HandleStatus(StrEnum):
    """Says how far a submit got, in handle.json: written before anything is started, and after all of it is."""

    INTENT = "intent"  # something may have been started
    SUBMITTED = "submitted"  # everything was

    @property
    def final(self) -> bool:
        """Tell whether the submit got through."""
        return self is HandleStatus.SUBMITTED


class Outcome(StrEnum):
    """Says how a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def status(self) -> RunStatus:
        """Give the status of a run that ended so."""
        return RunStatus(self.value)


class Cause(StrEnum):
    """Says whose fault a failure was, and so whether another start may mend it."""

    NONE = ""  # a run that did not fail, or of which it isn't known
    USER_ERROR = "user_error"  # the program, the job or the image: the same start fails the same way
    INFRA = "infra"  # a machine, the network, the scheduler, a signal, a hang
    PREEMPTED = "preempted"  # the scheduler or somebody else asked it to stop
    TIMEOUT = "timeout"  # a time limit was reached
    CANCELLED = "cancelled"  # an agent was told of a cancel that nobody has recorded here
    NO_PROGRESS = "no_progress"  # so many starts in a row made no new checkpoint
    CHECKPOINT = "checkpoint"  # training is done, and its final weights are on no disk
    NO_RETRY = "no_retry"  # a rank said so by its exit code
    STOPPED_EARLY = "stopped_early"  # its search has cancelled it: others were better by then


_Member = TypeVar("_Member", bound=StrEnum)


def member_of(kind: type[_Member], value: object) -> _Member | None:
    """Return the member with this value; None for what was damaged, or is of another version."""
    try:
        return kind(value) if isinstance(value, str) else None
    except ValueError:
        return None


def drop_invalid_fields(data: object, kinds: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """Return those fields of a JSON object that are of the kind that was written; the others count as lost.

    A field that is not there counts as null. Empty for what is no object.
    """
    if not isinstance(data, Mapping):
        return {}
    return {name: data.get(name) for name, types in kinds.items() if type(data.get(name)) in types}


_NONE: Final = type(None)
_VERDICT: Final[dict[str, tuple[type, ...]]] = {
    "reason": (str,), "attempt": (int,), "rank": (int, _NONE), "node": (int, _NONE), "host": (str,),
    "code": (int, _NONE), "signal": (str, _NONE), "error": (dict, _NONE), "tail": (list,), "hint": (str,),
    "survivors": (list,),
}  # fmt: skip


_PLACED: Final = re.compile(r"(rank \d+ on node \d+ \([^()]*\)) ended with (.+)")


@dataclass(frozen=True)
class Verdict:
    """How a run ended and why; the culprit's fields are empty when no rank is to blame."""

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

    @property
    def is_stopped_early(self) -> bool:
        """Tell whether the run's search has ended it, as it is meant to."""
        return self.cause is Cause.STOPPED_EARLY

    @property
    def why_and_where(self) -> tuple[str, str]:
        """Return the first line of the reason without the place, and the place: `rank 2 on node 0 (vm)`."""
        line = (self.reason.splitlines() or [""])[0]
        found = _PLACED.fullmatch(line)
        return (found[2], found[1]) if found else (line, "")

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON types."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Verdict:
        """Return the verdict that `to_json` gave; fields of another version, or that were damaged, are left out."""
        known = drop_invalid_fields(data, _VERDICT)
        return Verdict(
            member_of(Outcome, data.get("outcome")) or Outcome.FAILED,
            member_of(Cause, data.get("cause")) or Cause.NONE,
            **{
                **known,
                "tail": tuple(str(line) for line in known.get("tail", ())),
                "survivors": tuple(known.get("survivors", ())),
            },
        )


@dataclass(frozen=True)
class Ending:
    """What verdict.json holds: the verdict, and when the run ended by the wall clock; None where that isn't known."""

    verdict: Verdict
    ended: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the file's object."""
        return {**self.verdict.to_json(), "ended": self.ended}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Ending | None:
        """Return what `to_json` gave; None where the outcome is lost, and the events have to tell it again."""
        if member_of(Outcome, data.get("outcome")) is None:
            return None
        ended = drop_invalid_fields(data, {"ended": (int, float)}).get("ended")
        return Ending(Verdict.from_json(data), None if ended is None else float(ended))


@dataclass(frozen=True)
class Unreachable:
    """Since when a node's machine has been out of reach by the wall clock, and why: what is known of it is of then."""

    since: float
    why: str = ""


@dataclass(frozen=True)
class NodeState:
    """One node as its own events and its agent's liveness tell."""

    node: int
    host: str
    state: NodeStatus
    ranks: tuple[int, int] | None = None  # [first, last + 1)
    exits: dict[int, str] = field(default_factory=dict)
    unreachable: Unreachable | None = None


@dataclass(frozen=True)
class LeftOutputs:
    """What a run has written on one machine and is not here; `files` is None where it could not be looked at."""

    node: int
    host: str
    folder: str
    files: int | None
    bytes: int
    reason: str


@dataclass(frozen=True)
class Attempt:
    """One start of a run's ranks: when it began and ended by the wall clock, how it ended, and from which checkpoint.

    A checkpoint that was offered (`ORCH_RESUME_FROM`) counts as `resumed_from` only if the program has loaded it: the
    training library reports so, or the program's steps continue.
    """

    number: int
    began: float | None = None  # None: its ranks were never started
    ended: float | None = None
    end: str = ""
    resumed_from: str | None = None  # the loaded checkpoint's name; None if nothing shows a load
    offered: str | None = None  # the name of the checkpoint that the program was given
    first_step: int | None = None  # the first reported step, if the program was offered a checkpoint


@dataclass(frozen=True)
class Recovery:
    """Which machines a run has lost, since when by the wall clock, and what is done about it."""

    lost: tuple[str, ...]
    since: float
    next: str
    restarts: bool = True


@dataclass(frozen=True)
class RunState:
    """A run at one moment."""

    run_id: str
    name: str
    profile: str
    created: float
    state: RunStatus
    attempt: int = 0
    world_size: int | None = None
    master: str = ""
    nodes: tuple[NodeState, ...] = ()
    started: float | None = None
    ended: float | None = None
    restarts: int = 0
    verdict: Verdict | None = None
    detail: str = ""
    left: tuple[LeftOutputs, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    recovery: Recovery | None = None
    slurm_job: str | None = None  # its number; of a sweep's point, with the point's: 17_3

    @property
    def is_final(self) -> bool:
        """Tell whether the run has ended."""
        return self.state.final

    @property
    def is_stopped_early(self) -> bool:
        """Tell whether the run's search has ended it, as it is meant to."""
        return self.verdict is not None and self.verdict.is_stopped_early

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON types."""
        return asdict(self)


def how_it_ended(code: int | None, signal: str | None) -> str:
    """Return `exit code 17` or `SIGKILL`, in the words of a message."""
    return signal or f"exit code {code}"
