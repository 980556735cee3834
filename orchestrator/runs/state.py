"""The types that describe a run at one moment: its RunState, the states of its nodes, and its Verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from typing import Any, Final

from orchestrator.outcome.verdict import NodeState, Outcome, Verdict
from orchestrator.protocol.frozen import Value
from orchestrator.protocol.str_enum import member_of


class RunStatus(StrEnum):
    """The status of a run, as `orch status`, files and JSON show it."""

    SUBMITTING = "submitting"  # the run is recorded, and its submit is in progress or was killed
    PENDING = "pending"  # the run waits in a queue, or for the first events of its agents
    STARTING = "starting"  # an agent has reported, and the ranks have not been started yet
    RUNNING = "running"  # the ranks of an attempt were started
    RESTARTING = "restarting"  # an attempt or a start of the agents has failed, and another follows
    STOPPING = "stopping"  # a stop was requested
    FINISHING = "finishing"  # all ranks have ended; logs, outputs and checkpoints are being copied
    SUCCEEDED = "succeeded"  # every rank ended well
    FAILED = "failed"  # the verdict has the reason
    CANCELLED = "cancelled"  # a user or a search cancelled the run
    UNREADABLE = "unreadable"  # the run's record can't be read, so its state is unknown

    @property
    def final(self) -> bool:
        """Return whether the run has ended."""
        return self in (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED)


FINAL: Final = tuple(status for status in RunStatus if status.final)


class HandleStatus(StrEnum):
    """How far the start of a run has come. The status is written to handle.json before anything is started, and again
    after everything was started.
    """

    INTENT = "intent"  # something may have been started already
    SUBMITTED = "submitted"  # everything was started

    @property
    def final(self) -> bool:
        """Return whether everything was started."""
        return self is HandleStatus.SUBMITTED


def drop_invalid_fields(data: object, kinds: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """Return the fields of a JSON object whose values have one of their expected types. Other fields are dropped.

    A missing field is treated as null. The result is empty if `data` is not an object.
    """
    if not isinstance(data, Mapping):
        return {}
    return {name: data.get(name) for name, types in kinds.items() if type(data.get(name)) in types}


class Ending(Value):
    """The content of verdict.json: the verdict, and the wall-clock time of the end (None if unknown)."""

    verdict: Verdict
    ended: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the ending as JSON types, in the form of verdict.json."""
        return {**self.verdict.to_json(), "ended": self.ended}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Ending | None:
        """Parse the ending that `to_json` wrote. Return None if its outcome is damaged; the caller must then derive the
        ending from the events.
        """
        if member_of(Outcome, data.get("outcome")) is None:
            return None
        ended = drop_invalid_fields(data, {"ended": (int, float)}).get("ended")
        return Ending(Verdict.from_json(data), None if ended is None else float(ended))


class LeftOutputs(Value):
    """Outputs of a run that are on one of its machines and not on this machine. `files` is None if they could not be
    counted.
    """

    node: int
    host: str
    folder: str
    files: int | None
    bytes: int
    reason: str


class AttemptSummary(Value):
    """One start of a run's ranks: when it began and ended (wall clock), how it ended, and its checkpoint.

    The checkpoint in `ORCH_RESUME_FROM` is only offered to the program. It becomes `resumed_from` if the training
    library reports that it was loaded, if rank 0's process has read it, or if the program's steps or checkpoints
    continue from it.
    """

    number: int
    began: float | None = None  # None: its ranks were never started
    ended: float | None = None
    end: str = ""
    resumed_from: str | None = None  # name of the loaded checkpoint; None if nothing shows a load
    offered: str | None = None  # name of the checkpoint that was given to the program
    first_step: int | None = None  # the first step that the program reported, if a checkpoint was offered


class Recovery(Value):
    """The recovery of a run that has lost machines: the lost hosts, the time of the loss (wall clock), and the next
    step.
    """

    lost: tuple[str, ...]
    since: float
    next: str
    restarts: bool = True


class RunState(Value):
    """The state of a run at one moment."""

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
    attempts: tuple[AttemptSummary, ...] = ()
    recovery: Recovery | None = None
    job: str | None = None  # number of the scheduler's job: 17, or 17_3 for a point of a sweep

    @property
    def is_final(self) -> bool:
        """Return whether the run has ended."""
        return self.state.final

    @property
    def is_stopped_early(self) -> bool:
        """Return whether the search's stop rule ended the run before its regular end."""
        return self.verdict is not None and self.verdict.is_stopped_early

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON types."""
        return asdict(self)
