"""Computes a run's RunState from its recorded events and the given facts, without side effects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from orchestrator.outcome.judge import Records, lacking, verdict_of
from orchestrator.outcome.restart import newest_saved, newest_start
from orchestrator.outcome.sentences import culprit_in_words
from orchestrator.outcome.verdict import NodeState, NodeStatus, Outcome
from orchestrator.protocol.events import (
    AgentEnded,
    AgentStarted,
    AttemptFailed,
    Cancel,
    CantReach,
    Dropped,
    Event,
    FolderLost,
    FoundLost,
    GangEnded,
    GaveUp,
    Go,
    Joined,
    LeftBehind,
    Moved,
    OutputsBrought,
    OutputsLeft,
    Queued,
    RankExit,
    ReachedLeader,
    Restart,
    Stalled,
    Started,
    StartingAgain,
    Stopping,
    Submitted,
    Unjoined,
    Unused,
    Used,
    WaitingForHosts,
    last_of,
    of,
)
from orchestrator.protocol.hostlist import in_words, numbers_in_words
from orchestrator.runs.record import UNKNOWN, RunRecord
from orchestrator.runs.restarts.attempts import attempts_of
from orchestrator.runs.state import LeftOutputs, RunState, RunStatus

MOST_LATE = 3  # how many nodes are named with the reason why they have not joined
ENDS = (AgentEnded, GaveUp, FoundLost, Dropped)

# The status of a run after node 0 has recorded an event of these classes.
_STATUS_AFTER: Mapping[type[Event], RunStatus] = {
    Go: RunStatus.RUNNING,
    Restart: RunStatus.RESTARTING,
    Stopping: RunStatus.STOPPING,
    GangEnded: RunStatus.FINISHING,
}


def reduce(run: RunRecord, events: Iterable[Event], alive: Mapping[int, bool | None], *, rank0_done: bool) -> RunState:
    """Return the run's state from its record, its events, and which agents are alive (None if unknown).

    The events of each node are in order. Times of different hosts are never compared.
    """
    every = list(events)
    events = newest_start(every)
    by_node: dict[int, list[Event]] = {node: [] for node in range(max(1, run.nnodes))}
    own = [event for event in events if event.node is None]
    for event in events:
        if event.node in by_node:
            by_node[event.node].append(event)
    nodes = tuple(_reduce_node(node, by_node[node], run, alive.get(node)) for node in sorted(by_node))
    may_live = {node for node, lives in alive.items() if lives is not False}
    step = newest_saved(every).known_step
    verdict = verdict_of(Records(own, by_node, nodes, may_live, rank0_done, run.scheduler, run.run_id, step))
    verdict = verdict and replace(verdict, hint=verdict.hint.replace("-p PROFILE", f"-p {run.profile_name}"))
    goes, started = of(every, Go), last_of(events, Started)
    restarts = [event for event in every if isinstance(event, (Restart, StartingAgain))]
    ends = [event.time for event in events if isinstance(event, ENDS)]
    if verdict is not None and not ends and verdict.outcome is Outcome.SUCCEEDED:  # the agents recorded no end
        ends = [event.time for event in of(events, RankExit)]
    attempt = max([event.attempt for event in (*goes, *restarts)], default=0)
    if verdict is not None:  # a start that ended before its attempt has no attempt number
        verdict = replace(verdict, attempt=max(verdict.attempt, attempt))
    return RunState(
        run_id=run.run_id,
        name=run.name,
        profile=run.profile_name,
        created=run.created,
        state=RunStatus(verdict.outcome.value) if verdict else _live_state(own, by_node, nodes),
        attempt=attempt,
        world_size=goes[-1].world_size if goes else run.world_size,
        master=f"{started.master_addr}:{started.master_port}" if started is not None else "",
        nodes=nodes,
        started=goes[0].time if goes else None,
        ended=max(ends, default=None) if verdict else None,
        restarts=len(restarts),
        verdict=verdict,
        detail=_detail(own, by_node, nodes),
        left=left_outputs(every),
        attempts=attempts_of(every),
    )


def left_outputs(events: Iterable[Event]) -> tuple[LeftOutputs, ...]:
    """Return the outputs that are on the run's machines and not on this machine. The last record of each node
    counts. A folder that is left without outputs does not count.
    """
    found: dict[int, LeftOutputs] = {}
    for event in events:
        if isinstance(event, (OutputsLeft, LeftBehind)) and event.files != 0:
            found[event.left] = LeftOutputs(
                event.left, event.host, event.folder, event.files, event.bytes, event.reason
            )
        elif isinstance(event, OutputsBrought) and event.left is not None:
            found.pop(event.left, None)
    return tuple(found[node] for node in sorted(found))


def _reduce_node(node: int, events: list[Event], run: RunRecord, alive: bool | None) -> NodeState:
    state, ranks, host = NodeStatus.WAITING, None, run.hosts[node] if node < len(run.hosts) else UNKNOWN
    exits: dict[int, str] = {}
    for event in events:
        if isinstance(event, AgentStarted):
            planned = host not in ("", UNKNOWN, "localhost") and not run.scheduler
            state, host = NodeStatus.STARTING, host if planned else event.host
        elif isinstance(event, ReachedLeader) and state == NodeStatus.STARTING:
            state = NodeStatus.JOINED
        elif isinstance(event, Started):
            state, ranks, exits = NodeStatus.RUNNING, event.ranks, {}
        elif isinstance(event, RankExit):
            exits[event.rank] = event.how
        elif isinstance(event, (AgentEnded, GaveUp)):
            state = NodeStatus.ENDED
    if alive is False and state != NodeStatus.ENDED:  # includes an agent that died before its first event
        state = NodeStatus.LOST
    return NodeState(node, host, state, ranks, exits)


def _live_state(own: list[Event], by_node: Mapping[int, list[Event]], nodes: tuple[NodeState, ...]) -> RunStatus:
    if of(own, Cancel):
        return RunStatus.STOPPING
    steps = [type(event) for event in by_node[0] if type(event) in _STATUS_AFTER]
    if steps[-2:] == [Stopping, GangEnded]:
        return RunStatus.STOPPING  # the ranks ended because orch stopped them
    if steps:
        return _STATUS_AFTER[steps[-1]]
    if of(own, StartingAgain):
        return RunStatus.RESTARTING
    if any(node.state != NodeStatus.WAITING for node in nodes):
        return RunStatus.STARTING
    handed_over = any(isinstance(event, (Submitted, Queued)) for event in own)
    return RunStatus.PENDING if handed_over else RunStatus.SUBMITTING


def _detail(own: list[Event], by_node: Mapping[int, list[Event]], nodes: tuple[NodeState, ...]) -> str:
    """Return a sentence with the most important present fact, such as which nodes are missing; "" if there is none."""
    first, waits = by_node[0], last_of(own, WaitingForHosts, StartingAgain)
    if waits is not None and not of(first, AgentStarted):
        if isinstance(waits, StartingAgain):
            return f"start {waits.start} after {waits.reason}"
        if isinstance(waits, WaitingForHosts):
            return f"waiting for {in_words(waits.hosts)}: {_first_line(waits)}"
    unjoined = last_of(first, Unjoined, Go, Stopping)
    if isinstance(unjoined, Unjoined) and unjoined.words:
        return unjoined.words
    for events in by_node.values():
        if (hung := _hung(events)) is not None:
            return f"hung? rank {hung.rank} has made no progress for at least {hung.seconds:.0f} s"
    removed = last_of(first, AgentStarted, FolderLost)
    if isinstance(removed, FolderLost):
        blind = "; their heartbeats are lost, so orch may detect a hang late or not at all"
        return (
            f"{removed.host}: {removed.path} was removed during the run; the ranks continue without it"
            f"{blind if removed.with_heartbeats else ''}"
        )
    idle = last_of(first, Unused, Used, Go, Stopping)
    if isinstance(idle, Unused):
        from orchestrator.protocol.samples import lasting

        return f"idle for {lasting(idle.seconds)} and more: {idle.use}"
    begun = last_of(first, Restart, Go)
    if isinstance(begun, Restart):
        return f"attempt {begun.attempt} after {_failure(first, begun.attempt - 1) or begun.cause}"
    if begun is not None:
        return lacking(own, len(by_node))
    joined = {event.joined for event in of(first, Joined)}
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
    """Return why a node's agent could not join the gang, as it reported; empty if it reported no reason or has joined
    since then.
    """
    last = last_of(events, AgentStarted, CantReach, ReachedLeader)
    return last.why if isinstance(last, CantReach) else ""


def _hung(events: list[Event]) -> Stalled | None:
    """Return the newest stall that the leader counts as a hang. Return None if the ranks have continued, restarted or
    ended after it.
    """
    hung: dict[int, Stalled] = {}
    for event in events:
        if isinstance(event, Stalled) and event.full:
            hung[event.rank] = event
        elif isinstance(event, Moved):
            hung.pop(event.rank, None)
        elif isinstance(event, (Started, RankExit)):
            hung.clear()
    return next(reversed(hung.values()), None)


def _failure(events: list[Event], attempt: int) -> str:
    failed = (event for event in of(events, AttemptFailed) if event.attempt == attempt)
    return next((culprit_in_words(event.culprit) for event in failed), "")


def _first_line(event: WaitingForHosts) -> str:
    return event.why[0].splitlines()[0] if event.why and event.why[0] else "out of reach"
