"""What became of a run: pure folds over its events to a RunState and a Verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import NoneType
from typing import Any

from orchestrator.hints import hint_for
from orchestrator.starts import AGAIN, WITHOUT, newest_start

Event = Mapping[str, Any]
FINAL = ("succeeded", "failed", "cancelled")
ENDS = ("agent_ended", "gave_up", "found_lost", "dropped")

# What the fold reads of each kind of event. One that lacks it (a disk was full, a bit has flipped) did not happen.
_NEEDED: dict[str, dict[str, type]] = {
    "started": {"ranks": list},
    "rank_exit": {"rank": int},
    "agent_ended": {"outcome": str},
    "gave_up": {"outcome": str, "cause": str, "reason": str},
    "joined": {"joined": int},
    "go": {"attempt": int, "world_size": int},
    "restart": {"attempt": int, "cause": str},
    "starting_again": {"start": int, "attempt": int, "cause": str, "reason": str},
    "attempt_failed": {"attempt": int, "cause": str, "culprit": dict},
    "gang_ended": {"attempt": int, "outcome": str, "cause": str, "reason": str},
    "submit_failed": {"reason": str},
    "dropped": {"reason": str},
    "stall": {"rank": int, "full": bool, "seconds": float},
}


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


def fold(run: Event, events: Iterable[Event], alive: Mapping[int, bool | None], *, rank0_done: bool) -> RunState:
    """The run's state from its record, its events, and which agents are alive (None: can't be told).

    Events of one node are in order; nothing is read from clocks of different hosts.
    """
    every = [event for event in events if _is_whole(event)]
    events = newest_start(every)
    by_node: dict[int, list[Event]] = {node: [] for node in range(max(1, run.get("nnodes") or 0))}
    own = [event for event in events if "node" not in event]
    for event in events:
        if event.get("node") in by_node:
            by_node[event["node"]].append(event)
    nodes = tuple(_fold_node(node, by_node[node], run, alive.get(node)) for node in sorted(by_node))
    may_live = {node for node, lives in alive.items() if lives is not False}
    verdict = _verdict(run, own, by_node, nodes, may_live, rank0_done)
    goes = [event for event in every if event["kind"] == "go"]
    restarts = [event for event in every if event["kind"] in ("restart", AGAIN)]
    starts = [event for event in events if event["kind"] == "started"]
    ends = [event.get("time", 0.0) for event in events if event["kind"] in ENDS]
    return RunState(
        run_id=run["run_id"],
        name=run.get("name", "?"),
        profile=run.get("profile_name", "?"),
        created=run.get("created", 0.0),
        state=verdict.outcome if verdict else _live_state(own, by_node, nodes),
        attempt=max([event["attempt"] for event in (*goes, *restarts)], default=0),
        world_size=goes[-1]["world_size"] if goes else run.get("world_size"),
        master=f"{starts[-1].get('master_addr')}:{starts[-1].get('master_port')}" if starts else "",
        nodes=nodes,
        started=goes[0].get("time") if goes else None,
        ended=max(ends, default=None) if verdict else None,
        restarts=len(restarts),
        verdict=verdict,
        detail=_detail(own, by_node),
    )


def _is_whole(event: Event) -> bool:
    name_of_kind = event.get("kind")
    needed = _NEEDED.get(name_of_kind, {}) if isinstance(name_of_kind, str) else None
    return (
        needed is not None
        and all(isinstance(event.get(name), kind) for name, kind in needed.items())
        and isinstance(event.get("time", 0.0), int | float)
        and isinstance(event.get("node", 0), int)
        and ("ranks" not in needed or [type(rank) for rank in event["ranks"]] == [int, int])
    )


def _fold_node(node: int, events: list[Event], run: Event, alive: bool | None) -> NodeState:
    hosts = run.get("hosts") or []
    state, ranks, host = "waiting", None, str(hosts[node]) if node < len(hosts) else "?"
    exits: dict[int, str] = {}
    for event in events:
        kind = event["kind"]
        if kind == "agent_started":
            planned = host not in ("", "?", "localhost") and "slurm" not in str(
                run.get("kind")
            )  # its nodes are its choice
            state, host = "starting", host if planned else str(event.get("host"))
        elif kind == "started":
            state, ranks, exits = "running", (event["ranks"][0], event["ranks"][1]), {}
        elif kind == "rank_exit":
            exits[event["rank"]] = how_it_ended(event.get("code"), event.get("signal"))
        elif kind in ("agent_ended", "gave_up"):
            state = "ended"
    if alive is False and state != "ended":  # also one that never said a word: it was started, and is gone
        state = "lost"
    return NodeState(node, host, state, ranks, exits)


def _live_state(own: list[Event], by_node: Mapping[int, list[Event]], nodes: tuple[NodeState, ...]) -> str:
    kinds = [event["kind"] for event in by_node[0]]
    if any(event["kind"] == "cancel" for event in own):
        return "stopping"
    for kind in reversed(kinds):
        found = {"stopping": "stopping", "go": "running", "restart": "restarting", "gang_ended": "stopping"}.get(kind)
        if found:
            return found
    if any(event["kind"] == AGAIN for event in own):
        return "restarting"
    if any(node.state != "waiting" for node in nodes):
        return "starting"
    return "pending" if any(event["kind"] in ("submitted", "held") for event in own) else "submitting"


def _detail(own: list[Event], by_node: Mapping[int, list[Event]]) -> str:
    """The latest thing worth a sentence: who is missing, what is restarted."""
    waits = [event for event in own if event["kind"] in ("waiting_for_hosts", AGAIN)][-1:]
    if waits and not any(event["kind"] == "agent_started" for event in by_node[0]):
        if waits[0]["kind"] == AGAIN:
            return f"start {waits[0]['start']} after {waits[0]['reason']}"
        return f"waiting for {', '.join(map(str, _items(waits[0].get('hosts'))))}: {_first_line(waits[0])}"
    for events in by_node.values():
        silent = [event for event in events if event["kind"] in ("stall", "started", "rank_exit")][-1:]
        if silent and silent[0]["kind"] == "stall" and silent[0]["full"]:
            return f"hung? rank {silent[0]['rank']} has said nothing for {silent[0]['seconds']:.0f} s and more"
    joined = {event["joined"] for event in by_node[0] if event["kind"] == "joined"}
    for event in reversed(by_node[0]):
        if event["kind"] == "restart":
            return f"attempt {event['attempt']} after {event['cause']}"
        if event["kind"] == "go":
            return without(own, len(by_node))
    missing = sorted(set(by_node) - joined)
    return f"waiting for node {', '.join(map(str, missing))}" if joined and missing else ""


def without(own: Iterable[Event], nodes: int) -> str:
    """Which nodes this start of so many had to do without; empty where it has all of the plan's."""
    said = [event for event in own if event["kind"] == WITHOUT]
    if not said or said[-1].get("nodes") != nodes:  # they were back before it could be done
        return ""
    names = ", ".join(map(str, _items(said[-1].get("hosts"))))
    return f"on {said[-1].get('nodes')} of {said[-1].get('of')} nodes, without {names}"


def _verdict(
    run: Event,
    own: list[Event],
    by_node: Mapping[int, list[Event]],
    nodes: tuple[NodeState, ...],
    alive: set[int],
    rank0_done: bool,
) -> Verdict | None:
    """The verdict once no agent is left that could change it, else None."""
    survivors = tuple(pid for event in _all(by_node, "agent_ended") for pid in _items(event.get("survivors")))
    ended = [event for event in by_node[0] if event["kind"] == "gang_ended"]
    refused = [event for event in own if event["kind"] == "submit_failed"]
    if refused:
        return Verdict("failed", "infra", refused[-1]["reason"])
    if dropped := [event for event in own if event["kind"] == "dropped"]:
        return Verdict("cancelled", reason=dropped[-1]["reason"])
    if any(node.state in ("starting", "running") or (node.state == "waiting" and node.node in alive) for node in nodes):
        return None  # an agent that lives, or may live, has not said its last word: perhaps nobody has heard its first
    started = any(node.state != "waiting" for node in nodes)
    gone = any(event["kind"] == "found_lost" for event in own)
    if not started and not gone:
        return None
    cancelled = any(event["kind"] == "cancel" for event in own)
    if ended:
        verdict = _verdict_of_gang(ended[-1], by_node, nodes, rank0_done, survivors)
        return replace(verdict, reason="; ".join(filter(None, [verdict.reason, without(own, len(by_node))])))
    if cancelled:
        return Verdict("cancelled", survivors=survivors)
    given_up = _all(by_node, "gave_up")
    if given_up and not any(node.state == "lost" for node in nodes):
        first = given_up[0]
        outcome = first["outcome"] if first["outcome"] in FINAL else "failed"
        return Verdict(outcome, first["cause"], first["reason"] or f"{first['cause']} before the ranks were started")
    words = [_who_was_lost(nodes, own), *(event["reason"] for event in given_up[:1])]
    return Verdict("failed", "infra", "; ".join(word for word in words if word), survivors=survivors)


def _verdict_of_gang(
    end: Event,
    by_node: Mapping[int, list[Event]],
    nodes: tuple[NodeState, ...],
    rank0_done: bool,
    survivors: tuple[int, ...],
) -> Verdict:
    outcome, attempt = end["outcome"], end["attempt"]
    if outcome == "succeeded":
        missing = [node for node in nodes if not _said(by_node[node.node], "succeeded")]
        if missing:
            names = ", ".join(f"node {node.node} ({node.host})" for node in missing)
            return Verdict("failed", "infra", f"all ranks ended well, but {names} never said so", attempt)
        if not rank0_done:
            return Verdict("failed", "infra", "all nodes said done, but rank 0 left no done marker", attempt)
        return Verdict("succeeded", attempt=attempt, survivors=survivors)
    if outcome == "cancelled":
        return Verdict("cancelled", attempt=attempt, survivors=survivors)
    failures = [event for event in by_node[0] if event["kind"] == "attempt_failed" and event["attempt"] == attempt]
    if outcome == "failed" and failures and end["cause"] in (failures[-1]["cause"], "no_progress", "no_retry"):
        return _blame(failures[-1]["culprit"], end, survivors)
    reason = end["reason"] or {
        "preempted": "the scheduler or somebody else asked it to stop; it can be resumed from its checkpoint",
        "timeout": "its time limit was reached; it can be resumed from its checkpoint",
    }.get(outcome, f"it {outcome}, and what was recorded of why can't be read")
    return Verdict("failed", end["cause"], reason, attempt, hint=hint_for(reason, None, None), survivors=survivors)


def _blame(culprit: Event, end: Event, survivors: tuple[int, ...]) -> Verdict:
    error, tail = culprit.get("error"), tuple(str(line) for line in _items(culprit.get("tail")))
    error = error if isinstance(error, dict) and error else None
    words = " ".join([str(error.get("type")), str(error.get("message"))] if error else tail[-5:])
    how = how_it_ended(culprit.get("code"), culprit.get("signal"))
    if culprit.get("oom"):
        how = "SIGKILL, from the kernel: its cgroup ran out of memory"
    what = f"{error['type']}: {error.get('message')}".splitlines()[0][:200] if error and error.get("type") else how
    rank, node, host = culprit.get("rank"), culprit.get("node"), str(culprit.get("host", "?"))
    reason = f"rank {rank} on node {node} ({host}) ended with {how}"
    if what != how:
        reason += f": {what}"
    if culprit.get("hang"):
        reason = f"{(error or {}).get('message', 'a rank stood still')} on node {node} ({host})"
    if end["reason"]:
        reason += f"; {end['reason']}"
    return Verdict(
        "failed",
        end["cause"],
        reason,
        end["attempt"],
        rank=rank,
        node=node,
        host=host,
        code=culprit.get("code"),
        signal=culprit.get("signal"),
        error=error,
        tail=tail,
        hint=hint_for("MemoryError" if culprit.get("oom") else words, culprit.get("code"), culprit.get("signal")),
        survivors=survivors,
    )


def _who_was_lost(nodes: tuple[NodeState, ...], own: list[Event]) -> str:
    reasons = [str(event.get("reason", "")) for event in own if event["kind"] == "found_lost"]
    lost = [f"node {node.node} ({node.host})" for node in nodes if node.state == "lost"]
    if lost and not reasons:
        return f"the agent of {', '.join(lost)} vanished without a word: killed, or its machine went down"
    if not reasons and any(node.state == "ended" for node in nodes):
        return "the agents ended, but the record of how the gang ended is lost"
    return (reasons or [""])[-1] or "no agent ever reported"


def _first_line(event: Event) -> str:
    why = _items(event.get("why"))
    return str(why[0]).splitlines()[0] if why and str(why[0]) else "out of reach"


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _said(events: list[Event], outcome: str) -> bool:
    return any(event["kind"] == "agent_ended" and event["outcome"] == outcome for event in events)


def _all(by_node: Mapping[int, list[Event]], kind: str) -> list[Event]:
    return [event for events in by_node.values() for event in events if event["kind"] == kind]
