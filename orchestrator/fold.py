"""A run's events become its RunState: a pure fold, to which nothing matters but what was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.records import Event, NodeState, RunState, how_it_ended
from orchestrator.starts import AGAIN, newest_start
from orchestrator.verdicts import items, verdict_of, without

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
    verdict = verdict_of(run, own, by_node, nodes, may_live, rank0_done)
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
            chosen_by_slurm = "slurm" in str(run.get("kind"))
            planned = host not in ("", "?", "localhost") and not chosen_by_slurm
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
        return f"waiting for {', '.join(map(str, items(waits[0].get('hosts'))))}: {_first_line(waits[0])}"
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


def _first_line(event: Event) -> str:
    why = items(event.get("why"))
    return str(why[0]).splitlines()[0] if why and str(why[0]) else "out of reach"
