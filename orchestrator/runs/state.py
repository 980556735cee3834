"""The state of a run at one moment: its RunState, its nodes' states, and its Verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

Event = Mapping[str, Any]


class RunStatus(StrEnum):
    """The status of a run, as `orch status`, files and JSON show it."""

    SUBMITTING = "submitting"  # recorded; the submit is in progress, or was killed
    PENDING = "pending"  # handed over: it waits in a queue, or for its agents' first events
    STARTING = "starting"  # an agent has reported; the ranks have not been told to start
    RUNNING = "running"  # the ranks of an attempt were told to start
    RESTARTING = "restarting"  # an attempt or a start of the agents has failed, and another follows
    STOPPING = "stopping"  # it was asked to stop
    FINISHING = "finishing"  # all ranks have ended; logs, outputs and checkpoints are being copied
    SUCCEEDED = "succeeded"  # every rank ended well
    FAILED = "failed"  # the verdict has the reason
    CANCELLED = "cancelled"  # a user or its search cancelled it
    UNREADABLE = "unreadable"  # its record can't be read, so nothing is known of it

    @property
    def final(self) -> bool:
        """Tell whether the run has ended."""
        return self in (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED)


FINAL: Final = tuple(status for status in RunStatus if status.final)


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
        """Tell whether the node will send nothing more."""
        return self in (NodeStatus.ENDED, NodeStatus.LOST)


class HandleStatus(StrEnum):
    """The progress of a submit in handle.json, which is written before anything is started and after everything is."""

    INTENT = "intent"  # something may have been started
    SUBMITTED = "submitted"  # everything was started

    @property
    def final(self) -> bool:
        """Tell whether the submit completed."""
        return self is HandleStatus.SUBMITTED


class Outcome(StrEnum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def status(self) -> RunStatus:
        """Return the status of a run that ended this way."""
        return RunStatus(self.value)


class Cause(StrEnum):
    """The party to blame for a failure, which decides whether another start may help."""

    NONE = ""  # the run did not fail, or the cause is unknown
    USER_ERROR = "user_error"  # the program, the job or the image: another start fails the same way
    INFRA = "infra"  # a machine, the network, the scheduler, a signal, a hang
    PREEMPTED = "preempted"  # the scheduler or somebody else requested a stop
    TIMEOUT = "timeout"  # a time limit was reached
    CANCELLED = "cancelled"  # an agent received a cancel that is not recorded here
    NO_PROGRESS = "no_progress"  # several starts in a row made no new checkpoint
    CHECKPOINT = "checkpoint"  # training is done, but its final weights were not saved
    NO_RETRY = "no_retry"  # a rank requested it by its exit code
    STOPPED_EARLY = "stopped_early"  # its search cancelled it, because other trials were better at that point


_Member = TypeVar("_Member", bound=StrEnum)


def member_of(kind: type[_Member], value: object) -> _Member | None:
    """Return the member with this value, or None if the value is damaged or from another version."""
    try:
        return kind(value) if isinstance(value, str) else None
    except ValueError:
        return None


def drop_invalid_fields(data: object, kinds: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """Return the fields of a JSON object whose types are those that were written. Others count as lost.

    A missing field counts as null. Empty if `data` is not an object.
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
    """How a run ended and why. The culprit's fields are empty if no rank is to blame."""

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
        """Tell whether the run's search ended it, as intended."""
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
        """Return the verdict that `to_json` wrote. Fields that are damaged or from another version are left out."""
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
    """The content of verdict.json: the verdict, and the wall-clock time of the end (None if unknown)."""

    verdict: Verdict
    ended: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the file's object."""
        return {**self.verdict.to_json(), "ended": self.ended}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Ending | None:
        """Return the ending that `to_json` wrote.

        None if the outcome is lost and must be derived from the events again.
        """
        if member_of(Outcome, data.get("outcome")) is None:
            return None
        ended = drop_invalid_fields(data, {"ended": (int, float)}).get("ended")
        return Ending(Verdict.from_json(data), None if ended is None else float(ended))


@dataclass(frozen=True)
class Unreachable:
    """Since when (wall clock) a node's machine can't be reached, and why. Its data is from that time."""

    since: float
    why: str = ""


@dataclass(frozen=True)
class NodeState:
    """One node, from its own events and its agent's liveness."""

    node: int
    host: str
    state: NodeStatus
    ranks: tuple[int, int] | None = None  # [first, last + 1)
    exits: dict[int, str] = field(default_factory=dict)
    unreachable: Unreachable | None = None


@dataclass(frozen=True)
class LeftOutputs:
    """Outputs of a run that are on a machine and not here. `files` is None if they could not be counted."""

    node: int
    host: str
    folder: str
    files: int | None
    bytes: int
    reason: str


@dataclass(frozen=True)
class Attempt:
    """One start of a run's ranks: wall-clock times of begin and end, how it ended, and its checkpoint.

    A checkpoint that was offered (`ORCH_RESUME_FROM`) counts as `resumed_from` only if the program has loaded it: the
    training library reports so, or the program's steps continue.
    """

    number: int
    began: float | None = None  # None: its ranks were never started
    ended: float | None = None
    end: str = ""
    resumed_from: str | None = None  # name of the loaded checkpoint; None if nothing shows a load
    offered: str | None = None  # name of the checkpoint that was given to the program
    first_step: int | None = None  # the first reported step, if the program was offered a checkpoint


@dataclass(frozen=True)
class Recovery:
    """The machines that a run has lost, since when (wall clock), and the next step."""

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
    job: str | None = None  # the number of its scheduler's job; of a sweep's point, with the point's: 17_3

    @property
    def is_final(self) -> bool:
        """Tell whether the run has ended."""
        return self.state.final

    @property
    def is_stopped_early(self) -> bool:
        """Tell whether the run's search ended it, as intended."""
        return self.verdict is not None and self.verdict.is_stopped_early

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON types."""
        return asdict(self)


def how_it_ended(code: int | None, signal: str | None) -> str:
    """Return `exit code 17` or `SIGKILL`, for use in a message."""
    return signal or f"exit code {code}"
