"""Describes the recovery of a run that has lost machines: the lost hosts, since when, and the next step. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.outcome.machines import choose
from orchestrator.outcome.restart import Relaunch, newest_start, next_start
from orchestrator.outcome.sentences import items
from orchestrator.protocol.events import EventKind, read_events
from orchestrator.protocol.hostlist import by_words, in_words
from orchestrator.runs.record import RunRecord
from orchestrator.runs.state import Cause, Event, Recovery, RunState


@dataclass(frozen=True)
class Reserves:
    """The machines that a run has for its next start, and the rules of its profile for the loss of a machine."""

    hosts: tuple[str, ...]  # of the plan's nodes
    free: tuple[str, ...] = ()  # can replace a lost machine, in this order
    former: frozenset[str] = frozenset()  # machines among `free` that the newest start left out; they may be back
    min_nodes: int | None = None
    node_wait: float = 0.0


@dataclass(frozen=True)
class Newest:
    """The newest checkpoint that was copied to this machine: its name, and the time of its last file."""

    name: str
    time: float


def recovery_of(
    record: RunRecord,
    events: Iterable[Event],
    state: RunState,
    has: Reserves,
    newest: Callable[[], Newest | None] = lambda: None,
) -> Recovery | None:
    """Return the lost hosts and the next step. None for a run that has ended, or whose newest attempt is running.

    Until the next start is decided, the next step is the decision that would follow if nothing changes. `newest` is
    called only if no event has the step of a checkpoint.
    """
    events = [*read_events(events)]
    attempt = max((event["attempt"] for event in events if event["kind"] == EventKind.GO), default=-1)
    relaunch = next((event for event in events if _opens(event) and event["attempt"] > attempt), None)
    said = [event for event in events if relaunch is not None and event.get("start") == relaunch["start"]]
    away = {node.host: node.unreachable.since for node in state.nodes if node.unreachable is not None}
    if not (lost := _losses(events) or (away if relaunch is not None or _has_given_up(events) else {})):
        at = _left_at(events) or float(relaunch.get("time", 0.0)) if relaunch is not None else 0.0
        lost = dict.fromkeys(_hosts_in(said), at)
    if state.is_final or not lost or _of(events, EventKind.CANCEL):
        return None
    since = min(lost.values())
    plan = relaunch or next_start(record.retry, events, Cause.INFRA, "it was lost", lost=True)
    if plan is None or isinstance(plan, str):
        return Recovery(tuple(lost), since, plan or "no restart is left", restarts=False)
    where = _where(sorted(lost.keys() & away.keys()), said, has)
    step = plan.step if isinstance(plan, Relaunch) else plan.get("step")
    from_what = f"from step {step}" if step is not None else _from_what(events, newest())
    return Recovery(tuple(lost), since, f"{where} {from_what}")


def _from_what(events: Sequence[Event], newest: Newest | None) -> str:
    """Describe the checkpoint from which the next start resumes, if no step of a checkpoint is known.

    A file that a script overwrites has no step. The run's machines may have a newer checkpoint than this machine. Only
    node 0's report at the end of its gang shows that there is no checkpoint.
    """
    if newest is not None:
        return f"from {newest.name} of {time.strftime('%H:%M:%S', time.localtime(newest.time))} or a newer one"
    last = next((event for event in reversed(events) if event["kind"] in (EventKind.GO, EventKind.GANG_ENDED)), {})
    has_none = last.get("kind") == EventKind.GANG_ENDED and "step" in last and not last.get("saved")
    return "without a checkpoint" if has_none else "from the newest checkpoint, if its machines have one"


def _losses(events: Sequence[Event]) -> dict[str, float]:
    """Return the hosts that the newest attempt has lost, with the time that its leader recorded.

    A node that left because the leader itself did not run (`slept`) is not lost.
    """
    found: dict[str, float] = {}
    for event in (event for event in events if event.get("node") == 0):
        if event["kind"] == EventKind.GO:
            found = {}
        elif event["kind"] == EventKind.LOST_NODE and event.get("host") and "slept" not in event:
            found.setdefault(str(event["host"]), float(event.get("time", 0.0)))
    return found


def _left_at(events: Sequence[Event]) -> float:
    """Return when the first node of the newest attempt left because it had lost node 0; 0 if no node did."""
    at = 0.0
    for event in events:
        if event["kind"] == EventKind.GO:
            at = 0.0
        elif event["kind"] == EventKind.GAVE_UP and event.get("node"):
            at = at or float(event.get("time", 0.0))
    return at


def _where(away: Sequence[str], said: Sequence[Event], has: Reserves) -> str:
    """Return what is done on which machines: as it was decided, or as it will be with those `away` now."""
    if waits := _of(said, EventKind.WAITING_FOR_HOSTS):
        names = in_words(map(str, items(waits[-1].get("hosts"))))
        return f"waiting for {names}{_reasons(waits[-1])}, at most {has.node_wait:g} s, then restarting"
    replaced = {event.get("lost"): str(event.get("by")) for event in _of(said, EventKind.REPLACED)}
    is_decided = bool(replaced or _of(said, EventKind.GOING_ON_WITHOUT))
    gone = _hosts_in(said) or list(away)
    lost = [node for node, host in enumerate(has.hosts) if host in gone]
    choice = choose(range(len(has.hosts)), lost, () if is_decided else has.free, has.min_nodes)
    taken = list((replaced if is_decided else choice.replaced).values())
    on = [*(host for host in has.hosts if host not in {*gone, *taken}), *taken]
    if not is_decided and not choice.is_enough:
        return f"waiting for {in_words(gone)}, at most {has.node_wait:g} s, then restarting"

    def words(host: str) -> str:
        if host in has.former:
            return host if is_decided else f"{host} (if it is back)"
        return f"spare {host}" if host in taken else host

    return f"restarting on {in_words(map(words, on))}"


def _reasons(waits: Event) -> str:
    """Return why the hosts can't take part, in brackets; without host names if all have the same reason."""
    first_lines = (str(why).partition("\n")[0].partition(": ") for why in items(waits.get("why")))
    told = [(host, words) for host, _, words in first_lines if words]
    same = {words for _, words in told}
    shown = same if len(same) == 1 else by_words(told)
    return f" ({'; '.join(shown)})" if told else ""


def _hosts_in(said: Sequence[Event]) -> list[str]:
    """Return the hosts that the next start leaves out or replaces."""
    replaced = [str(event.get("host")) for event in _of(said, EventKind.REPLACED)]
    left_out = [str(host) for event in _of(said, EventKind.GOING_ON_WITHOUT) for host in items(event.get("hosts"))]
    return [*replaced, *left_out]


def _has_given_up(events: Sequence[Event]) -> bool:
    return any(event["kind"] == EventKind.GAVE_UP and event.get("node") for event in newest_start(events))


def _opens(event: Event) -> bool:
    return event["kind"] == EventKind.RELAUNCH and "node" not in event


def _of(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event["kind"] == kind]
