"""Describes the recovery of a run that has lost machines: which hosts are lost, since when, and what is done next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.outcome.machines import choose
from orchestrator.outcome.restart import decided_starts, newest_start, next_start, progress_of
from orchestrator.outcome.verdict import Cause
from orchestrator.protocol.events import (
    UNREPORTED,
    Cancel,
    Event,
    GangEnded,
    GaveUp,
    Go,
    GoingOnWithout,
    LostNode,
    Replaced,
    WaitingForHosts,
    last_of,
    of,
)
from orchestrator.protocol.hostlist import by_words, in_words
from orchestrator.runs.record import RunRecord
from orchestrator.runs.state import Recovery, RunState


@dataclass(frozen=True)
class Reserves:
    """The machines that are available for a run's next start, and the profile's rules for the loss of a machine."""

    hosts: tuple[str, ...]  # the hosts of the plan's nodes
    free: tuple[str, ...] = ()  # the hosts that can replace a lost machine, in order of preference
    former: frozenset[str] = frozenset()  # machines among `free` that the newest start left out; they may be back
    min_nodes: int | None = None
    node_wait: float = 0.0


@dataclass(frozen=True)
class Newest:
    """The newest checkpoint that was copied to this machine: its name, and the time of the last write to its files."""

    name: str
    time: float


def recovery_of(
    record: RunRecord,
    events: Iterable[Event],
    state: RunState,
    has: Reserves,
    newest: Callable[[], Newest | None] = lambda: None,
) -> Recovery | None:
    """Return the lost hosts and orch's next action, which is a restart or the end of the run. Return None if no host is
    lost, or if the run has ended or is cancelled.

    Before orch has decided, the action is a forecast from the present state. `newest` is called only if no event
    contains the step of a checkpoint.
    """
    events = list(events)
    attempt = max((event.attempt for event in of(events, Go)), default=-1)
    relaunch = next((event for event in decided_starts(events) if event.attempt > attempt), None)
    decisions = [event for event in events if isinstance(event, (Replaced, GoingOnWithout, WaitingForHosts))]
    said = [event for event in decisions if relaunch is not None and event.start == relaunch.start]
    away = {node.host: node.unreachable.since for node in state.nodes if node.unreachable is not None}
    if not (lost := _losses(events) or (away if relaunch is not None or _has_given_up(events) else {})):
        at = _left_at(events) or relaunch.time if relaunch is not None else 0.0
        lost = dict.fromkeys(_gone(said), at)
    if state.is_final or not lost or of(events, Cancel):
        return None
    since = min(lost.values())
    plan = relaunch or next_start(record.retry, events, Cause.INFRA, "it was lost", lost=True)
    if plan is None or isinstance(plan, str):
        return Recovery(tuple(lost), since, plan or "no restart is left", restarts=False)
    where = _where(sorted(lost.keys() & away.keys()), said, has)
    step = progress_of(relaunch).known_step if relaunch is not None else plan.step
    from_what = f"from step {step}" if step is not None else _from_what(events, newest())
    return Recovery(tuple(lost), since, f"{where} {from_what}")


def _from_what(events: Sequence[Event], newest: Newest | None) -> str:
    """Describe the checkpoint from which the next start resumes, for a run without a checkpoint whose step is known.

    A file that a script overwrites has no step. The run's machines may have a newer checkpoint than this machine. Only
    node 0's report at the end of its gang shows that there is no checkpoint at all.
    """
    if newest is not None:
        return f"from {newest.name} of {time.strftime('%H:%M:%S', time.localtime(newest.time))} or a newer one"
    last = last_of(events, Go, GangEnded)
    has_none = isinstance(last, GangEnded) and last.step != UNREPORTED and not last.saved
    return "without a checkpoint" if has_none else "from the newest checkpoint, if its machines have one"


def _losses(events: Sequence[Event]) -> dict[str, float]:
    """Return the hosts that the newest attempt has lost, each with the time that its leader recorded.

    If a node left only because the leader's process had been paused (`slept`), its host does not count as lost.
    """
    found: dict[str, float] = {}
    for event in (event for event in events if event.node == 0):
        if isinstance(event, Go):
            found = {}
        elif isinstance(event, LostNode) and event.host and event.slept is None:
            found.setdefault(event.host, event.time)
    return found


def _left_at(events: Sequence[Event]) -> float:
    """Return the time at which the first node of the newest attempt exited because it had lost node 0; 0 if no node
    did.
    """
    at = 0.0
    for event in events:
        if isinstance(event, Go):
            at = 0.0
        elif isinstance(event, GaveUp) and event.node:
            at = at or event.time
    return at


def _where(away: Sequence[str], said: Sequence[Event], has: Reserves) -> str:
    """Describe the next step and its machines. If no decision is recorded, predict it from the hosts that are `away`
    now.
    """
    if (waits := last_of(said, WaitingForHosts)) is not None:
        return f"waiting for {in_words(waits.hosts)}{_reasons(waits)}, at most {has.node_wait:g} s, then restarting"
    replaced = {event.lost: event.by for event in of(said, Replaced)}
    is_decided = bool(replaced or of(said, GoingOnWithout))
    gone = _gone(said) or list(away)
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


def _reasons(waits: WaitingForHosts) -> str:
    """Return, in brackets, why the hosts can't take part. Host names are left out if all hosts have the same reason."""
    first_lines = (why.partition("\n")[0].partition(": ") for why in waits.why)
    told = [(host, words) for host, _, words in first_lines if words]
    same = {words for _, words in told}
    shown = same if len(same) == 1 else by_words(told)
    return f" ({'; '.join(shown)})" if told else ""


def _gone(said: Sequence[Event]) -> list[str]:
    """Return the hosts that the next start leaves out or replaces, according to the recorded decisions `said`."""
    replaced = [event.host for event in of(said, Replaced)]
    return [*replaced, *(host for event in of(said, GoingOnWithout) for host in event.hosts)]


def _has_given_up(events: Sequence[Event]) -> bool:
    return any(event.node for event in of(newest_start(events), GaveUp))
