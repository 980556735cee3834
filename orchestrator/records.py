"""What is known of a run: its RunState and its Verdict, and what of its record can be believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import NoneType
from typing import Any

Event = Mapping[str, Any]
FINAL = ("succeeded", "failed", "cancelled")


# What is read of run.json; a field of another type has been damaged, and counts as lost.
_RECORDED: dict[str, tuple[type, ...]] = {
    "nnodes": (int,),
    "created": (int, float),
    "kind": (str,),
    "name": (str,),
    "profile_name": (str,),
    "hosts": (list,),
    "world_size": (int, NoneType),
    "grace": (int, float),
    "submitter": (dict,),
}
_MOST_NODES = 100_000


def mended(record: Event) -> dict[str, Any]:
    """A run's record without the fields that can't be what was written."""
    whole = {name: value for name, value in record.items() if type(value) in _RECORDED.get(name, (type(value),))}
    if not 0 <= whole.get("nnodes", 0) <= _MOST_NODES:
        del whole["nnodes"]
    return whole


@dataclass(frozen=True)
class Verdict:
    """How a run ended and why; the culprit's fields are empty when no rank is to blame."""

    outcome: str  # succeeded | failed | cancelled
    cause: str = ""  # user_error | infra | preempted | timeout | no_progress | no_retry | lost
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

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON types."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Verdict:
        """The verdict that `to_json` gave; fields of another version, or that have been damaged, are left out."""
        kinds = {"attempt": int, "rank": int, "node": int, "code": int, "error": dict, "tail": list, "survivors": list}
        known = {
            name: data[name]
            for name in Verdict.__dataclass_fields__
            if name in data and type(data[name]) is kinds.get(name, str)
        }
        return Verdict(
            **{
                "outcome": "failed",
                **known,
                "tail": tuple(str(line) for line in known.get("tail", ())),
                "survivors": tuple(known.get("survivors", ())),
            }
        )


@dataclass(frozen=True)
class NodeState:
    """One node as its own events and its agent's liveness tell."""

    node: int
    host: str
    state: str  # waiting | starting | running | ended | lost
    ranks: tuple[int, int] | None = None  # [first, last + 1)
    exits: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunState:
    """A run at one moment."""

    run_id: str
    name: str
    profile: str
    created: float
    state: str  # submitting | pending | starting | running | restarting | stopping | FINAL
    attempt: int = 0
    world_size: int | None = None
    master: str = ""
    nodes: tuple[NodeState, ...] = ()
    started: float | None = None
    ended: float | None = None
    restarts: int = 0
    verdict: Verdict | None = None
    detail: str = ""

    @property
    def is_final(self) -> bool:
        """Has the run ended?"""
        return self.state in FINAL

    def to_json(self) -> dict[str, Any]:
        """The state as JSON types."""
        return asdict(self)


def how_it_ended(code: int | None, signal: str | None) -> str:
    """`exit code 17` or `SIGKILL`, in the words of a message."""
    return signal or f"exit code {code}"
