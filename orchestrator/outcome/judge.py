"""Judges a run's end by the records of its newest start, and decides whether another start follows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.outcome.restart import Budgets, Relaunch, is_limit_signal, next_start
from orchestrator.outcome.sentences import culprit_in_words, items, kernel_words, memory_in_words, refused_saves
from orchestrator.outcome.verdict import Cause, Event, NodeState, NodeStatus, Outcome, Party, Verdict, cause_of_event
from orchestrator.protocol.events import EventKind
from orchestrator.protocol.hostlist import in_words, nodes_in_words
from orchestrator.protocol.progress import progress_of
from orchestrator.protocol.str_enum import member_of


@dataclass(frozen=True)
class Records:
    """The facts about a run's newest start. Events of one node are in order; clocks of hosts are never compared."""

    own: Sequence[Event]  # of the submitting machine
    by_node: Mapping[int, Sequence[Event]]
    nodes: Sequence[NodeState]
    alive: Collection[int]  # nodes whose agent is alive, or may be
    rank0_done: bool  # rank 0's marker of the newest attempt is there
    scheduler: str = ""  # its name
    run_id: str = ""
    saved_step: int | None = None  # of the run's newest checkpoint, also of an earlier start

    def of(self, kind: str, node: int | None = None) -> Iterator[Event]:
        """Return the nodes' events of this kind, or those of one node."""
        parts = self.by_node.values() if node is None else [self.by_node.get(node, ())]
        return (event for events in parts for event in events if event["kind"] == kind)

    def by_us(self, kind: str) -> list[Event]:
        """Return the submitting machine's events of this kind."""
        return [event for event in self.own if event["kind"] == kind]

    @property
    def end(self) -> Event | None:
        """Return the leader's record of the gang's end; None if it left none."""
        return next(iter([*self.of(EventKind.GANG_ENDED, 0)][-1:]), None)

    @property
    def was_given_up(self) -> bool:
        """Tell whether not all agents will ever report. Leftovers of the others have been ended."""
        return bool(self.by_us(EventKind.FOUND_LOST))

    @property
    def is_cancelled(self) -> bool:
        """Tell whether a cancel is recorded."""
        return bool(self.by_us(EventKind.CANCEL))

    @property
    def lost(self) -> list[tuple[int, str]]:
        """Return the nodes whose agents are gone without a last event, with their hosts."""
        return [(node.node, node.host) for node in self.nodes if node.state == NodeStatus.LOST]

    @property
    def survivors(self) -> tuple[int, ...]:
        """Return the processes that agents could not end."""
        return tuple(pid for event in self.of(EventKind.AGENT_ENDED) for pid in items(event.get("survivors")))


def verdict_of(records: Records) -> Verdict | None:
    """Return the verdict on the newest start, or None while an agent is left that could change it.

    The first of `_JUDGES` that knows the end decides.
    """
    if (verdict := _refused(records) or _dropped(records)) is not None or _may_change(records):
        return verdict
    if not records.was_given_up and all(node.state == NodeStatus.WAITING for node in records.nodes):
        # A cancel ends a start that has no agent yet, as while the run waits for machines.
        return cancelled(records.own) if records.is_cancelled and records.by_us(EventKind.RELAUNCH) else None
    verdict = next(verdict for judge in _JUDGES if (verdict := judge(records)) is not None)
    return verdict if verdict.hint else replace(verdict, hint=_how_to_resume(verdict, records))


def _how_to_resume(verdict: Verdict, records: Records) -> str:
    """Return the command that resumes a run which was stopped and has a checkpoint; else ""."""
    if verdict.cause not in (Cause.PREEMPTED, Cause.TIMEOUT) or records.saved_step is None:
        return ""
    return f"resume it from step {records.saved_step}: orch submit --from {records.run_id} --resume {records.run_id}"


def what_follows(verdict: Verdict, events: Iterable[Event], retry: Budgets, *, lost: bool) -> Relaunch | Verdict:
    """Return the start that the supervisor makes after this end, or the verdict if no start follows.

    A success is never followed by a start. A cancel ends the run if it alone prevents another start.
    """
    if verdict.outcome is not Outcome.FAILED:
        return verdict
    events = list(events)
    others = [event for event in events if event["kind"] != EventKind.CANCEL]
    again, is_cancelled = next_start(retry, others, verdict.cause, verdict.reason, lost=lost), len(others) < len(events)
    if isinstance(again, Relaunch):
        return cancelled(events, replace(verdict, reason="")) if is_cancelled else again
    if again is None or is_cancelled:
        return verdict
    return replace(verdict, cause=Cause.NO_PROGRESS, reason=again)


def cancelled(events: Iterable[Event], verdict: Verdict | None = None) -> Verdict:
    """Return the verdict as that of a cancelled run. A search gives the reason of its cancel."""
    said = next((event.get("reason") for event in events if event["kind"] == EventKind.CANCEL), None)
    verdict = verdict or Verdict(Outcome.CANCELLED)
    verdict = replace(verdict, outcome=Outcome.CANCELLED, cause=Cause.NONE, hint="", blames=Party.USER)
    return replace(verdict, cause=Cause.STOPPED_EARLY, reason=said) if isinstance(said, str) else verdict


# -- before any agent has to be heard


def _refused(records: Records) -> Verdict | None:
    refused = records.by_us(EventKind.SUBMIT_FAILED)
    return Verdict(Outcome.FAILED, Cause.INFRA, str(refused[-1]["reason"])) if refused else None


def _dropped(records: Records) -> Verdict | None:
    dropped = records.by_us(EventKind.DROPPED)
    return cancelled(records.own, Verdict(Outcome.CANCELLED, reason=str(dropped[-1]["reason"]))) if dropped else None


def _may_change(records: Records) -> bool:
    """Tell whether an agent is or may be alive that has not written its last event, or not even its first."""
    if records.was_given_up:
        return any(not node.state.final for node in records.nodes if node.state != NodeStatus.WAITING)
    return any(
        node.node in records.alive if node.state == NodeStatus.WAITING else not node.state.final
        for node in records.nodes
    )


# -- the judges


def _success(records: Records) -> Verdict | None:
    """Judge by the exit codes of all ranks. A cancel, or the loss of a node, changes nothing after the last exit."""
    end = records.end
    is_reported = end is not None and end["outcome"] == Outcome.SUCCEEDED
    if end is not None and is_reported and not records.rank0_done:
        reason = "all nodes said done, but rank 0 left no done marker"
        return _on_fewer_nodes(Verdict(Outcome.FAILED, Cause.INFRA, reason, end["attempt"]), records)
    from orchestrator.outcome.success import successful_attempt

    exited = successful_attempt(records.by_node, rank0_done=records.rank0_done)
    attempt = end["attempt"] if end is not None and is_reported else exited
    if attempt is None:
        return None
    lost = nodes_in_words(records.lost)
    exits = [each for each in records.of(EventKind.RANK_EXIT) if each["rank"] == 0 and each.get("attempt") == attempt]
    words = [
        f"all ranks ended well; lost after that, and left behind: {lost}" if lost else "",
        refused_saves(exits[-1]) if exits else "",
    ]
    verdict = Verdict(
        Outcome.SUCCEEDED, reason="; ".join(filter(None, words)), attempt=attempt, survivors=records.survivors
    )
    return _on_fewer_nodes(verdict, records)


def _in_vain(records: Records) -> Verdict | None:
    """Judge a start of Slurm's that node 0 gave up for want of progress. srun then ends the nodes that are left."""
    said = [event for event in records.of(EventKind.GAVE_UP, 0) if event["cause"] == Cause.NO_PROGRESS]
    return _failed(records, str(said[-1]["reason"]), Cause.NO_PROGRESS) if said and not records.is_cancelled else None


def _by_leader(records: Records) -> Verdict | None:
    """Judge by the leader's record of the gang's end."""
    if (end := records.end) is None:
        return None
    if end["outcome"] == Outcome.CANCELLED:
        verdict = Verdict(Outcome.CANCELLED, reason=end["reason"], attempt=end["attempt"], survivors=records.survivors)
        return _on_fewer_nodes(cancelled(records.own, verdict), records)
    failures = [each for each in records.of(EventKind.ATTEMPT_FAILED, 0) if each["attempt"] == end["attempt"]]
    is_of_rank = failures and end["cause"] in (failures[-1]["cause"], Cause.NO_PROGRESS, Cause.NO_RETRY)
    if end["outcome"] == Outcome.FAILED and is_of_rank:
        verdict = _of_rank(records, failures[-1]["culprit"], end)
    else:
        verdict = _of_no_rank(records, end)
    return _on_fewer_nodes(verdict, records)


def _by_cancel(records: Records) -> Verdict | None:
    return (
        cancelled(records.own, Verdict(Outcome.CANCELLED, survivors=records.survivors))
        if records.is_cancelled
        else None
    )


def _by_those_who_left(records: Records) -> Verdict | None:
    """Judge by the nodes that left without the leader's record.

    Node 0's own failure comes first, because it is why the others left. Otherwise a lost node explains more.
    """
    given_up = list(records.of(EventKind.GAVE_UP))
    in_vain = [event for event in given_up if event["cause"] == Cause.NO_PROGRESS]
    leader = [event for event in given_up if event.get("node") == 0 and event["outcome"] == Outcome.FAILED]
    found = in_vain or leader or ([] if records.lost else given_up)
    if not found:
        return None
    reason = found[0]["reason"] or f"{found[0]['cause']} before the ranks were started"
    outcome = member_of(Outcome, found[0]["outcome"]) or Outcome.FAILED
    return replace(_failed(records, reason, cause_of_event(found[0])), outcome=outcome)


def _by_what_is_lost(records: Records) -> Verdict | None:
    """Judge if no node knows more: name the agents that are gone, and the reason of the first that left them."""
    reasons = [str(event.get("reason", "")) for event in records.by_us(EventKind.FOUND_LOST)]
    if reasons:
        words = reasons[-1] or "no agent ever reported"
    elif records.lost:
        words = f"the agent of {nodes_in_words(records.lost)} vanished without a word: killed, or its machine went down"
    elif any(node.state == NodeStatus.ENDED for node in records.nodes):
        words = "the agents ended, but the record of how the attempt ended is lost"
    else:
        words = "no agent ever reported"
    said = [event["reason"] for event in records.of(EventKind.GAVE_UP)][:1]
    return _failed(records, "; ".join(filter(None, [words, *said])))


_JUDGES = (_success, _in_vain, _by_leader, _by_cancel, _by_those_who_left, _by_what_is_lost)


# -- what they share


def _failed(records: Records, reason: str, cause: Cause = Cause.INFRA, attempt: int = 0) -> Verdict:
    from orchestrator.outcome.rules import blamed, hint_for  # the table is large, and a look at live runs needs none

    return Verdict(
        Outcome.FAILED, cause, reason, attempt, hint=hint_for(reason), survivors=records.survivors,
        blames=blamed(reason, cause),
    )  # fmt: skip


def _of_rank(records: Records, culprit: Event, end: Event) -> Verdict:
    """Return the verdict on a rank's failure."""
    from orchestrator.outcome.rule import Seen
    from orchestrator.outcome.rules import hint_of, rule_of

    seen = Seen.of(culprit)
    error = culprit.get("error")
    error = dict(error) if isinstance(error, Mapping) and error else None
    lacks = [str(culprit["lacks"])] if culprit.get("lacks") else []  # the nodes that lack a module
    words = [culprit_in_words(culprit), *lacks, *memory_in_words(error), *kernel_words(culprit), str(end["reason"])]
    cause = cause_of_event(end)
    return Verdict(
        Outcome.FAILED,
        cause,
        str(end["reason"]) if cause is Cause.CHECKPOINT else "; ".join(filter(None, words)),
        end["attempt"],
        rank=culprit.get("rank"),
        node=culprit.get("node"),
        host=str(culprit.get("host", "?")),
        code=culprit.get("code"),
        signal=culprit.get("signal"),
        error=error,
        tail=tuple(str(line) for line in items(culprit.get("tail"))),
        hint=hint_of(seen),
        survivors=records.survivors,
        blames=rule_of(seen).culprit,
    )


def _of_no_rank(records: Records, end: Event) -> Verdict:
    """Return the verdict on an end that no rank caused, with the reason of whoever knows most about it.

    1. A node that left node 0 while that did not run (`slept`): node 0 itself knows only that it was left.
    2. A node that never joined: node 0 knows only that the node is missing, and its words follow.
    3. All nodes that reported the same problem as the node that failed.
    4. Node 0.
    """
    words = [str(end["reason"] or _how_it_was_stopped(records, end)), _what_it_lacks(end)]
    reason = "; ".join(filter(None, words))
    failed = next((node for node in records.nodes if node.node == end.get("failed_node")), None)
    others = [event for event in records.of(EventKind.GAVE_UP) if event.get("node")]
    joined = {event.get("joined") for event in records.of(EventKind.JOINED, 0)}
    absent = [each for each in others if each["node"] not in joined and each["outcome"] == Outcome.FAILED]
    verdict = _failed(records, reason, cause_of_event(end), end["attempt"])
    if failed is not None:
        shared = _of_all_with(failed.node, records) or reason
        tail = tuple(str(line) for line in items(end.get("tail")))
        verdict = replace(verdict, reason=shared, node=failed.node, host=failed.host, tail=tail)
    if others and any(records.of(EventKind.SLEPT, 0)):
        return replace(verdict, reason=str(others[0]["reason"]))
    if absent:
        said = str(absent[0]["reason"])
        return replace(verdict, reason=f"{said}; {verdict.reason}", hint=_failed(records, said).hint)
    return verdict


def _of_all_with(failed: int, records: Records) -> str:
    """Return the node's problem with all nodes that reported the same; "" if no other node reported it."""
    told = {event.get("node"): str(event.get("reason")) for event in records.of(EventKind.TROUBLE)}
    same = [(node.node, node.host) for node in records.nodes if failed in told and told.get(node.node) == told[failed]]
    return f"{nodes_in_words(same)}: {told[failed]}" if len(same) > 1 else ""


def _how_it_was_stopped(records: Records, end: Event) -> str:
    """Return why a run ended if the leader has given no reason."""
    if end["outcome"] == Cause.TIMEOUT:
        return "its time limit was reached"
    if end["outcome"] != Cause.PREEMPTED:
        return f"it {end['outcome']}, and what was recorded of why can't be read"
    names = [str(event["signal"]) for event in records.of(EventKind.STOPPING, 0) if event.get("signal")]
    if not names:
        return "its ranks stopped at a step boundary, and asked to be started again"
    if not records.scheduler:
        return f"stopped by {names[0]}, which orch has not sent"
    near = " (time limit near)" if is_limit_signal(names[0], records.scheduler) else ""
    return f"stopped by {names[0]} from {records.scheduler}{near}"


def _what_it_lacks(end: Event) -> str:
    """Return a sentence if a stopped run has no checkpoint with a known step; "" otherwise."""
    saved = progress_of(end)
    if end["outcome"] not in (Cause.PREEMPTED, Cause.TIMEOUT) or "step" not in end or saved.step >= 0:
        return ""
    return "it can go on from the files that it has written" if saved.saved else "it has saved nothing to go on from"


def _on_fewer_nodes(verdict: Verdict, records: Records) -> Verdict:
    """Return the verdict with the nodes that this start lacked added to its reason."""
    return replace(
        verdict, reason="; ".join(filter(None, [verdict.reason, lacking(records.own, len(records.by_node))]))
    )


def lacking(own: Iterable[Event], nodes: int) -> str:
    """Return which nodes this start lacks; "" if it has all of the plan's."""
    said = [event for event in own if event["kind"] == EventKind.GOING_ON_WITHOUT]
    if not said or said[-1].get("nodes") != nodes:  # the nodes were back before the start
        return ""
    names = in_words(map(str, items(said[-1].get("hosts"))))
    return f"on {said[-1].get('nodes')} of {said[-1].get('of')} nodes, without {names}"
