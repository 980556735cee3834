"""Judges a run's end from the records of its newest start, and decides whether another start follows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrator.outcome.restart import Budgets, Relaunch, is_limit_signal, next_start
from orchestrator.outcome.sentences import culprit_in_words, error_of, kernel_words, memory_in_words, refused_saves
from orchestrator.outcome.verdict import Cause, NodeState, NodeStatus, Outcome, Party, Verdict, cause_named
from orchestrator.protocol.events import (
    AgentEnded,
    AttemptFailed,
    Cancel,
    Dropped,
    Event,
    Found,
    FoundLost,
    GangEnded,
    GaveUp,
    GoingOnWithout,
    Joined,
    RankExit,
    Slept,
    StartingAgain,
    Stopping,
    SubmitFailed,
    Troubled,
    of,
)
from orchestrator.protocol.frozen import Value
from orchestrator.protocol.hostlist import in_words, nodes_in_words
from orchestrator.protocol.rank_reports import Culprit
from orchestrator.protocol.str_enum import member_of
from orchestrator.protocol.typed import to_json


class Records(Value):
    """The facts about a run's newest start. The events of each node are in order. Times of different hosts are never
    compared, because their clocks may differ.
    """

    own: Sequence[Event]  # the events of the submitting machine
    by_node: Mapping[int, Sequence[Event]]
    nodes: Sequence[NodeState]
    alive: Collection[int]  # nodes whose agent is or may be alive
    rank0_done: bool  # whether rank 0 has written the file that marks success in the newest attempt
    scheduler: str = ""  # the scheduler's name
    run_id: str = ""
    saved_step: int | None = None  # the step of the run's newest checkpoint, which may be from an earlier start

    def of(self, cls: type[Found], node: int | None = None) -> list[Found]:
        """Return the events of this class that the node has written. If `node` is None, include all nodes."""
        parts = self.by_node.values() if node is None else [self.by_node.get(node, ())]
        return [event for events in parts for event in of(events, cls)]

    @property
    def end(self) -> GangEnded | None:
        """Return the leader's event about the gang's end, or None if the leader has written none."""
        return next(reversed(self.of(GangEnded, 0)), None)

    @property
    def was_given_up(self) -> bool:
        """Return whether the submitting machine has recorded that some agents will never report. After this, it ends
        all other agents of the run.
        """
        return bool(of(self.own, FoundLost))

    @property
    def is_cancelled(self) -> bool:
        """Return whether a cancel is recorded."""
        return bool(of(self.own, Cancel))

    @property
    def lost(self) -> list[tuple[int, str]]:
        """Return (node, host) of each agent that is gone without a last event."""
        return [(node.node, node.host) for node in self.nodes if node.state == NodeStatus.LOST]

    @property
    def survivors(self) -> tuple[int, ...]:
        """Return the pids of the processes that agents could not end."""
        return tuple(pid for event in self.of(AgentEnded) for pid in event.survivors)


def verdict_of(records: Records) -> Verdict | None:
    """Return the verdict (how the run ended, and why) on the newest start, or None while a living agent could still
    change it.

    The functions in `_JUDGES` are called in order, and the first verdict that is not None is returned.
    """
    if (verdict := _refused(records) or _dropped(records)) is not None or _may_change(records):
        return verdict
    if not records.was_given_up and all(node.state == NodeStatus.WAITING for node in records.nodes):
        # A cancel ends a start that has no agent yet, for example while the run waits for machines.
        return cancelled(records.own) if records.is_cancelled and of(records.own, StartingAgain) else None
    verdict = next(verdict for judge in _JUDGES if (verdict := judge(records)) is not None)
    return verdict if verdict.hint else replace(verdict, hint=_how_to_resume(verdict, records))


def _how_to_resume(verdict: Verdict, records: Records) -> str:
    """Return the command that resumes a run that was stopped and has a checkpoint. Return "" for any other run."""
    if verdict.cause not in (Cause.PREEMPTED, Cause.TIMEOUT) or records.saved_step is None:
        return ""
    return f"resume it from step {records.saved_step}: orch submit --from {records.run_id} --resume {records.run_id}"


def what_follows(verdict: Verdict, events: Iterable[Event], retry: Budgets, *, lost: bool) -> Relaunch | Verdict:
    """Return the start that the supervisor makes after a start that ended with this verdict. If no start follows,
    return the verdict.

    Another start follows only a failure. If it would follow but a cancel is recorded, the verdict becomes that of a
    cancelled run.
    """
    if verdict.outcome is not Outcome.FAILED:
        return verdict
    events = list(events)
    others = [event for event in events if not isinstance(event, Cancel)]
    again, is_cancelled = next_start(retry, others, verdict.cause, verdict.reason, lost=lost), len(others) < len(events)
    if isinstance(again, Relaunch):
        return cancelled(events, replace(verdict, reason="")) if is_cancelled else again
    if again is None or is_cancelled:
        return verdict
    return replace(verdict, cause=Cause.NO_PROGRESS, reason=again)


def cancelled(events: Iterable[Event], verdict: Verdict | None = None) -> Verdict:
    """Change a verdict to that of a cancelled run. If a search cancelled the run, the reason of the search replaces
    that of the verdict.
    """
    reason = next((event.reason for event in of(events, Cancel)), None)
    verdict = verdict or Verdict(Outcome.CANCELLED)
    verdict = replace(verdict, outcome=Outcome.CANCELLED, cause=Cause.NONE, hint="", blames=Party.USER)
    return verdict if reason is None else replace(verdict, cause=Cause.STOPPED_EARLY, reason=reason)


# -- verdicts that need no report of an agent


def of_lost_record(hint: str) -> Verdict:
    """Return the verdict on a run whose run.json is lost. `hint` names the command that ends the run's remaining
    processes.
    """
    reason = "its record run.json is not there: a submit or an rm was interrupted, or its folder was deleted"
    return Verdict(Outcome.FAILED, Cause.INFRA, reason, hint=hint)


def _refused(records: Records) -> Verdict | None:
    refused = of(records.own, SubmitFailed)
    return Verdict(Outcome.FAILED, Cause.INFRA, refused[-1].reason) if refused else None


def _dropped(records: Records) -> Verdict | None:
    dropped = of(records.own, Dropped)
    return cancelled(records.own, Verdict(Outcome.CANCELLED, reason=dropped[-1].reason)) if dropped else None


def _may_change(records: Records) -> bool:
    """Return whether an agent may still write events: it may be alive, and it has not written its last event.

    An agent that has written no event counts too, unless the submitting machine has recorded that some agents will
    never report.
    """
    if records.was_given_up:
        return any(not node.state.final for node in records.nodes if node.state != NodeStatus.WAITING)
    return any(
        node.node in records.alive if node.state == NodeStatus.WAITING else not node.state.final
        for node in records.nodes
    )


# -- the judges


def _success(records: Records) -> Verdict | None:
    """Judge by the exit codes of all ranks. After the last exit, a cancel or the loss of a node changes nothing."""
    end = records.end
    if end is not None and end.outcome == Outcome.SUCCEEDED:
        attempt: int | None = end.attempt
        if not records.rank0_done:
            reason = "all nodes said done, but rank 0 left no done marker"
            return _on_fewer_nodes(Verdict(Outcome.FAILED, Cause.INFRA, reason, end.attempt), records)
    else:
        from orchestrator.outcome.success import successful_attempt

        attempt = successful_attempt(records.by_node, rank0_done=records.rank0_done)
    if attempt is None:
        return None
    lost = nodes_in_words(records.lost)
    exits = [each for each in records.of(RankExit) if each.rank == 0 and each.attempt == attempt]
    left_behind = f"all ranks ended well; after that, these nodes were lost: {lost}" if lost else ""
    reason = "; ".join(filter(None, [left_behind, refused_saves(exits[-1]) if exits else ""]))
    verdict = Verdict(Outcome.SUCCEEDED, reason=reason, attempt=attempt, survivors=records.survivors)
    return _on_fewer_nodes(verdict, records)


def _in_vain(records: Records) -> Verdict | None:
    """Return the verdict on a start that saved nothing new, if node 0 recorded that further starts by the scheduler
    would make no progress.

    The exits of the other nodes are ignored, because srun ends these nodes after node 0 has exited.
    """
    gave_up = [event for event in records.of(GaveUp, 0) if event.cause == Cause.NO_PROGRESS]
    return _failed(records, gave_up[-1].reason, Cause.NO_PROGRESS) if gave_up and not records.is_cancelled else None


def _by_leader(records: Records) -> Verdict | None:
    """Judge by the leader's event about the gang's end."""
    if (end := records.end) is None:
        return None
    if end.outcome == Outcome.CANCELLED:
        verdict = Verdict(Outcome.CANCELLED, reason=end.reason, attempt=end.attempt, survivors=records.survivors)
        return _on_fewer_nodes(cancelled(records.own, verdict), records)
    failures = [each for each in records.of(AttemptFailed, 0) if each.attempt == end.attempt]
    is_of_rank = failures and end.cause in (failures[-1].cause, Cause.NO_PROGRESS, Cause.NO_RETRY)
    if end.outcome == Outcome.FAILED and is_of_rank:
        verdict = _of_rank(records, failures[-1].culprit, end)
    else:
        verdict = _of_no_rank(records, end)
    return _on_fewer_nodes(verdict, records)


def _by_cancel(records: Records) -> Verdict | None:
    verdict = Verdict(Outcome.CANCELLED, survivors=records.survivors)
    return cancelled(records.own, verdict) if records.is_cancelled else None


def _by_those_who_left(records: Records) -> Verdict | None:
    """Return a verdict from the nodes that exited before they received a verdict from the leader. Return None if the
    loss of a node explains why the run ended.

    A failure of node 0 itself comes first, because it made the other nodes exit.
    """
    given_up = records.of(GaveUp)
    leader = [event for event in given_up if event.node == 0 and event.outcome == Outcome.FAILED]
    found = leader or ([] if records.lost else given_up)
    if not found:
        return None
    reason = found[0].reason or f"{found[0].cause} before the ranks were started"
    outcome = member_of(Outcome, found[0].outcome) or Outcome.FAILED
    return replace(_failed(records, reason, cause_named(found[0].cause)), outcome=outcome)


def _by_what_is_lost(records: Records) -> Verdict | None:
    """Return a verdict that names the lost agents. It is used if no other function of `_JUDGES` returns a verdict. Its
    reason includes that of the first node that exited without the leader's decision.
    """
    reasons = [event.reason for event in of(records.own, FoundLost)]
    if reasons:
        words = reasons[-1] or "no agent ever reported"
    elif records.lost:
        words = f"the agent of {nodes_in_words(records.lost)} vanished without a word: killed, or its machine went down"
    elif any(node.state == NodeStatus.ENDED for node in records.nodes):
        words = "the agents ended, but the record of how the attempt ended is lost"
    else:
        words = "no agent ever reported"
    said = [event.reason for event in records.of(GaveUp)][:1]
    return _failed(records, "; ".join(filter(None, [words, *said])))


_JUDGES = (_success, _in_vain, _by_leader, _by_cancel, _by_those_who_left, _by_what_is_lost)


# -- what they share


def _failed(records: Records, reason: str, cause: Cause = Cause.INFRA, attempt: int = 0) -> Verdict:
    from orchestrator.outcome.rules import blamed, hint_for  # the table is large, and status rarely needs it

    return Verdict(
        Outcome.FAILED, cause, reason, attempt, hint=hint_for(reason), survivors=records.survivors,
        blames=blamed(reason, cause),
    )  # fmt: skip


def _of_rank(records: Records, culprit: Culprit, end: GangEnded) -> Verdict:
    """Return the verdict on a run that a rank's failure ended."""
    from orchestrator.outcome.rule import Seen
    from orchestrator.outcome.rules import hint_of, rule_of

    seen, error, cause = Seen.of(culprit), error_of(culprit), cause_named(end.cause)
    words = [
        culprit_in_words(culprit), culprit.lacks, *memory_in_words(error), *kernel_words(culprit), end.reason,
    ]  # fmt: skip
    return Verdict(
        Outcome.FAILED, cause, end.reason if cause is Cause.CHECKPOINT else "; ".join(filter(None, words)), end.attempt,
        rank=culprit.rank, node=culprit.node, host=culprit.host, code=culprit.code, signal=culprit.signal,
        error=None if error is None else to_json(error), tail=culprit.tail, hint=hint_of(seen),
        survivors=records.survivors, blames=rule_of(seen).culprit,
    )  # fmt: skip


def _of_no_rank(records: Records, end: GangEnded) -> Verdict:
    """Return the verdict on an end that no rank caused. Its reason is the first of these reasons that exists:

    1. The reason of a node that left because node 0's process was paused. Node 0 itself recorded only that the node
       left.
    2. The reason of a node that never joined, followed by one of the reasons below. Node 0 recorded only that the node
       is missing.
    3. The problem of the failed node, with the names of all nodes that reported the same problem.
    4. The reason that node 0 reported.
    """
    reason = "; ".join(filter(None, [end.reason or _how_it_was_stopped(records, end), _what_it_lacks(end)]))
    failed = next((node for node in records.nodes if node.node == end.failed_node), None)
    others = [event for event in records.of(GaveUp) if event.node]
    joined = {event.joined for event in records.of(Joined, 0)}
    absent = [each for each in others if each.node not in joined and each.outcome == Outcome.FAILED]
    verdict = _failed(records, reason, cause_named(end.cause), end.attempt)
    if failed is not None:
        shared = _of_all_with(failed.node, records) or reason
        verdict = replace(verdict, reason=shared, node=failed.node, host=failed.host, tail=end.tail)
    if others and any(isinstance(event, Slept) for event in records.by_node.get(0, ())):
        return replace(verdict, reason=others[0].reason)
    if absent:
        said = absent[0].reason
        return replace(verdict, reason=f"{said}; {verdict.reason}", hint=_failed(records, said).hint)
    return verdict


def _of_all_with(failed: int, records: Records) -> str:
    """Return the problem of the failed node, with the names of all nodes that reported the same problem; "" if no
    other node reported the problem.
    """
    told = {event.node: event.reason for event in records.of(Troubled)}
    same = [(node.node, node.host) for node in records.nodes if failed in told and told.get(node.node) == told[failed]]
    return f"{nodes_in_words(same)}: {told[failed]}" if len(same) > 1 else ""


def _how_it_was_stopped(records: Records, end: GangEnded) -> str:
    """Return why a run ended if the leader's event has no reason."""
    if end.outcome == Cause.TIMEOUT:
        return "its time limit was reached"
    if end.outcome != Cause.PREEMPTED:
        return f"it {end.outcome}, and what was recorded of why can't be read"
    names = [event.signal for event in records.of(Stopping, 0) if event.signal]
    if not names:
        return "its ranks stopped at a step boundary, and asked to be started again"
    if not records.scheduler:
        return f"stopped by {names[0]}, which orch has not sent"
    near = " (time limit near)" if is_limit_signal(names[0], records.scheduler) else ""
    return f"stopped by {names[0]} from {records.scheduler}{near}"


def _what_it_lacks(end: GangEnded) -> str:
    """Return a sentence for a stopped run that has no checkpoint with a known step; "" for any other run."""
    if end.outcome not in (Cause.PREEMPTED, Cause.TIMEOUT) or end.step is not None:
        return ""  # the step is known, or an old version that did not report it wrote the event
    return "it can go on from the files that it has written" if end.saved else "it has saved nothing to go on from"


def _on_fewer_nodes(verdict: Verdict, records: Records) -> Verdict:
    """Add the missing nodes to the verdict's reason if this start had fewer nodes than planned."""
    return replace(
        verdict, reason="; ".join(filter(None, [verdict.reason, lacking(records.own, len(records.by_node))]))
    )


def lacking(own: Iterable[Event], nodes: int) -> str:
    """Return a text that names the planned nodes that this start lacks; "" if no node is missing."""
    decided = of(own, GoingOnWithout)
    if not decided or decided[-1].nodes != nodes:  # the nodes were back before the start
        return ""
    return f"on {decided[-1].nodes} of {decided[-1].of} nodes, without {in_words(decided[-1].hosts)}"
