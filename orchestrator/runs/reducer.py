"""Reduces a run's events to its RunState. Pure: only recorded events matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from orchestrator.outcome.judge import Records, lacking, verdict_of
from orchestrator.outcome.restart import newest_saved, newest_start
from orchestrator.outcome.sentences import culprit_in_words, items
from orchestrator.outcome.verdict import how_it_ended
from orchestrator.protocol.events import EventKind, read_events
from orchestrator.protocol.hostlist import in_words, numbers_in_words
from orchestrator.runs.record import UNKNOWN, RunRecord
from orchestrator.runs.restarts.attempts import attempts_of
from orchestrator.runs.state import (
    Event,
    LeftOutputs,
    NodeState,
    NodeStatus,
    Outcome,
    RunState,
    RunStatus,
)

MOST_LATE = 3  # how many nodes are named with the reason why they have not joined
ENDS = (EventKind.AGENT_ENDED, EventKind.GAVE_UP, EventKind.FOUND_LOST, EventKind.DROPPED)

# The status of a run after node 0 has recorded an event of these kinds.
_STATUS_AFTER = {
    EventKind.GO: RunStatus.RUNNING,
    EventKind.RESTART: RunStatus.RESTARTING,
    EventKind.STOPPING: RunStatus.STOPPING,
    EventKind.GANG_ENDED: RunStatus.FINISHING,
}


def reduce(run: RunRecord, events: Iterable[Event], alive: Mapping[int, bool | None], *, rank0_done: bool) -> RunState:
    """Return the run's state from its record, its events, and which agents are alive (None: unknown).

    Events of one node are in order. Clocks of different hosts are never compared.
    """
    every: list[Event] = [*read_events(events)]
    events = newest_start(every)
    by_node: dict[int, list[Event]] = {node: [] for node in range(max(1, run.nnodes))}
    own = [event for event in events if "node" not in event]
    for event in events:
        if event.get("node") in by_node:
            by_node[event["node"]].append(event)
    nodes = tuple(_reduce_node(node, by_node[node], run, alive.get(node)) for node in sorted(by_node))
    may_live = {node for node, lives in alive.items() if lives is not False}
    step = newest_saved(every).known_step
    verdict = verdict_of(Records(own, by_node, nodes, may_live, rank0_done, run.scheduler, run.run_id, step))
    verdict = verdict and replace(verdict, hint=verdict.hint.replace("-p PROFILE", f"-p {run.profile_name}"))
    goes = [event for event in every if event["kind"] == EventKind.GO]
    restarts = [event for event in every if event["kind"] in (EventKind.RESTART, EventKind.RELAUNCH)]
    starts = [event for event in events if event["kind"] == EventKind.STARTED]
    ends = [event.get("time", 0.0) for event in events if event["kind"] in ENDS]
    if verdict is not None and not ends and verdict.outcome is Outcome.SUCCEEDED:  # all agents died before they left
        ends = [event.get("time", 0.0) for event in events if event["kind"] == EventKind.RANK_EXIT]
    attempt = max([event["attempt"] for event in (*goes, *restarts)], default=0)
    if verdict is not None:  # a start that was given up before its attempt has no attempt number
        verdict = replace(verdict, attempt=max(verdict.attempt, attempt))
    return RunState(
        run_id=run.run_id,
        name=run.name,
        profile=run.profile_name,
        created=run.created,
        state=RunStatus(verdict.outcome.value) if verdict else _live_state(own, by_node, nodes),
        attempt=attempt,
        world_size=goes[-1]["world_size"] if goes else run.world_size,
        master=f"{starts[-1].get('master_addr')}:{starts[-1].get('master_port')}" if starts else "",
        nodes=nodes,
        started=goes[0].get("time") if goes else None,
        ended=max(ends, default=None) if verdict else None,
        restarts=len(restarts),
        verdict=verdict,
        detail=_detail(own, by_node, nodes),
        left=left_outputs(every),
        attempts=attempts_of(every),
    )


def left_outputs(events: Iterable[Event]) -> tuple[LeftOutputs, ...]:
    """Return the outputs that are on the run's machines and not here, from each node's last record."""
    found: dict[int, LeftOutputs] = {}
    for event in events:
        node, kind = event.get("left"), event.get("kind")
        if kind not in (EventKind.OUTPUTS_LEFT, EventKind.LEFT_BEHIND, EventKind.OUTPUTS_BROUGHT):
            continue
        if type(node) is not int or kind == EventKind.OUTPUTS_BROUGHT:
            found.pop(node if type(node) is int else -1, None)
            continue
        files, size = (event.get(name) if type(event.get(name)) is int else None for name in ("files", "bytes"))
        words = [str(event.get(name) or "") for name in ("host", "folder", "reason")]
        found[node] = LeftOutputs(node, words[0], words[1], files, size or 0, words[2])
    return tuple(found[node] for node in sorted(found))


def _reduce_node(node: int, events: list[Event], run: RunRecord, alive: bool | None) -> NodeState:
    state, ranks, host = NodeStatus.WAITING, None, run.hosts[node] if node < len(run.hosts) else UNKNOWN
    exits: dict[int, str] = {}
    for event in events:
        kind = event["kind"]
        if kind == EventKind.AGENT_STARTED:
            planned = host not in ("", UNKNOWN, "localhost") and not run.scheduler
            state, host = NodeStatus.STARTING, host if planned else str(event.get("host"))
        elif kind == EventKind.REACHED_LEADER and state == NodeStatus.STARTING:
            state = NodeStatus.JOINED
        elif kind == EventKind.STARTED:
            state, ranks, exits = NodeStatus.RUNNING, (event["ranks"][0], event["ranks"][1]), {}
        elif kind == EventKind.RANK_EXIT:
            exits[event["rank"]] = how_it_ended(event.get("code"), event.get("signal"))
        elif kind in (EventKind.AGENT_ENDED, EventKind.GAVE_UP):
            state = NodeStatus.ENDED
    if alive is False and state != NodeStatus.ENDED:  # also an agent without any event: it was started, and is gone
        state = NodeStatus.LOST
    return NodeState(node, host, state, ranks, exits)


def _live_state(own: list[Event], by_node: Mapping[int, list[Event]], nodes: tuple[NodeState, ...]) -> RunStatus:
    kinds = [event["kind"] for event in by_node[0]]
    if any(event["kind"] == EventKind.CANCEL for event in own):
        return RunStatus.STOPPING
    said = [kind for kind in kinds if kind in _STATUS_AFTER]
    if said[-1:] == [EventKind.GANG_ENDED] and EventKind.STOPPING in said[-2:]:
        return RunStatus.STOPPING  # the ranks ended because they were stopped
    if said:
        return _STATUS_AFTER[said[-1]]
    if any(event["kind"] == EventKind.RELAUNCH for event in own):
        return RunStatus.RESTARTING
    if any(node.state != NodeStatus.WAITING for node in nodes):
        return RunStatus.STARTING
    handed_over = any(event["kind"] in (EventKind.SUBMITTED, EventKind.QUEUED) for event in own)
    return RunStatus.PENDING if handed_over else RunStatus.SUBMITTING


def _detail(own: list[Event], by_node: Mapping[int, list[Event]], nodes: tuple[NodeState, ...]) -> str:
    """Return the most important present fact in a sentence, such as which nodes are missing; else ""."""
    waits = [event for event in own if event["kind"] in (EventKind.WAITING_FOR_HOSTS, EventKind.RELAUNCH)][-1:]
    if waits and not any(event["kind"] == EventKind.AGENT_STARTED for event in by_node[0]):
        if waits[0]["kind"] == EventKind.RELAUNCH:
            return f"start {waits[0]['start']} after {waits[0]['reason']}"
        return f"waiting for {in_words(map(str, items(waits[0].get('hosts'))))}: {_first_line(waits[0])}"
    phases = (EventKind.UNJOINED, EventKind.GO, EventKind.STOPPING)
    unjoined = [event for event in by_node[0] if event["kind"] in phases][-1:]
    if unjoined and unjoined[0]["kind"] == EventKind.UNJOINED and unjoined[0]["words"]:
        return str(unjoined[0]["words"])
    for events in by_node.values():
        if (hung := _hung(events)) is not None:
            return f"hung? rank {hung['rank']} has said nothing for {hung['seconds']:.0f} s and more"
    removed = [event for event in by_node[0] if event["kind"] in (EventKind.AGENT_STARTED, EventKind.FOLDER_LOST)][-1:]
    if removed and removed[0]["kind"] == EventKind.FOLDER_LOST:
        blind = "; their heartbeats are lost, so a hang is noticed late or not at all"
        return (
            f"{removed[0]['host']}: {removed[0]['path']} was removed during the run; the ranks go on without it"
            f"{blind if removed[0].get('with_heartbeats') else ''}"
        )
    changes = (EventKind.UNUSED, EventKind.USED, EventKind.GO, EventKind.STOPPING)
    idle = [event for event in by_node[0] if event["kind"] in changes][-1:]
    if idle and idle[0]["kind"] == EventKind.UNUSED:
        from orchestrator.protocol.samples import lasting

        return f"idle for {lasting(idle[0]['seconds'])} and more: {idle[0]['use']}"
    joined = {event["joined"] for event in by_node[0] if event["kind"] == EventKind.JOINED}
    for event in reversed(by_node[0]):
        if event["kind"] == EventKind.RESTART:
            return f"attempt {event['attempt']} after {_failure(by_node[0], event['attempt'] - 1) or event['cause']}"
        if event["kind"] == EventKind.GO:
            return lacking(own, len(by_node))
    missing = sorted(set(by_node) - joined)
    late = [(node, why) for node in missing if (why := _why_late(by_node[node]))]
    if late:
        return "; ".join(f"waiting for {_called(nodes, node)}: it can't reach {_called(nodes, 0)} ({why})"
                         for node, why in late[:MOST_LATE])  # fmt: skip
    return f"waiting for node{'s' * (len(missing) > 1)} {numbers_in_words(missing)}" if joined and missing else ""


def _called(nodes: tuple[NodeState, ...], node: int) -> str:
    host = nodes[node].host
    return f"node {node} ({host})" if host and host != UNKNOWN else f"node {node}"


def _why_late(events: list[Event]) -> str:
    """Return why a node has not joined its gang, if its agent has reported a reason and has not joined since."""
    kinds = (EventKind.AGENT_STARTED, EventKind.CANT_REACH, EventKind.REACHED_LEADER)
    last = next((event for event in reversed(events) if event["kind"] in kinds), {})
    return str(last.get("why") or "") if last.get("kind") == EventKind.CANT_REACH else ""


def _hung(events: list[Event]) -> Event | None:
    """Return the newest stall that counts as a hang. None if the ranks have continued, started or ended since."""
    hung: dict[int, Event] = {}
    for event in events:
        if event["kind"] == EventKind.STALL and event["full"]:
            hung[event["rank"]] = event
        elif event["kind"] == EventKind.MOVED:
            hung.pop(event["rank"], None)
        elif event["kind"] in (EventKind.STARTED, EventKind.RANK_EXIT):
            hung.clear()
    return next(reversed(hung.values()), None)


def _failure(events: list[Event], attempt: int) -> str:
    failed = (event for event in events if event["kind"] == EventKind.ATTEMPT_FAILED and event["attempt"] == attempt)
    return next((culprit_in_words(event["culprit"]) for event in failed), "")


def _first_line(event: Event) -> str:
    why = items(event.get("why"))
    return str(why[0]).splitlines()[0] if why and str(why[0]) else "out of reach"
