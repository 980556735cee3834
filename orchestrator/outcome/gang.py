"""Judges the end of one attempt: which failure is to blame, and whether the leader starts the ranks again. The gang
is the run's connected agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Callable

from orchestrator.outcome import restart
from orchestrator.outcome.ends import Blame, blame_of
from orchestrator.outcome.restart import Budgets, Refusal, Restarter
from orchestrator.outcome.rules import cause_of, is_machines_fault
from orchestrator.outcome.verdict import Cause, Outcome
from orchestrator.protocol.rank_reports import Culprit, LeftEarly
from orchestrator.protocol.ranks import EXIT_REQUEUE


@dataclass(frozen=True)
class EndedAttempt:
    """The facts that the leader has at the end of an attempt."""

    exits: Sequence[Culprit]  # the exits of all ranks, in any order
    ended_well: bool  # whether every rank of every node ended well
    stopped: Cause = Cause.NONE  # why the leader stopped the ranks, if no failure was the reason
    lost: str = ""  # the nodes that were lost and why, as text
    lost_ranks: bool = False  # whether a node was lost before its ranks had ended well
    folders_lost: str = ""  # the nodes that lost the run's folder, as text
    idle: str = ""  # why an idle run was ended, as text
    retry: Budgets = field(default_factory=dict)
    restarts: Sequence[str] = ()  # the causes of this gang's restarts
    stalled: int = 0  # attempts in a row without a new checkpoint
    has_spares: bool = False


@dataclass(frozen=True)
class End:
    """The judgement on an attempt: its outcome, or `again` if another attempt follows. `culprit` is the rank to blame,
    and `failure` the cause of its end.
    """

    outcome: str  # an Outcome, or PREEMPTED or TIMEOUT
    cause: Cause = Cause.NONE
    reason: str = ""
    culprit: Culprit | None = None
    failure: Cause = Cause.NONE
    again: bool = False


def end_of(attempt: EndedAttempt) -> End:
    """Judge an attempt whose ranks have all ended. The first rule that applies decides.

    1. If every rank ended well, a later signal, cancel or time limit changes nothing.
    2. If the run was stopped on purpose, no other attempt follows, because it would be stopped as well.
    3. If a node was lost before its ranks had ended well, the loss is to blame, because it may have caused any failure.
       Two failures are blamed in place of the loss: a rank ruled out another start, or could not write the last
       checkpoint.
    4. If a rank exits with code 95 by itself, it requests that the run is started again. New agents do this, so the
       gang ends. But if a rank failed by itself, rule 5 decides.
    5. The failure that is most to blame decides the cause. The budget for this cause decides whether another attempt
       follows.

    The order of the exits does not matter.
    """
    unsaved = [each for each in attempt.exits if each.unsaved]
    failure = culprit_of(attempt.exits) or min(unsaved, key=lambda end: end.rank, default=None)
    if attempt.ended_well:
        return End(Outcome.SUCCEEDED)
    if attempt.stopped is Cause.IDLE:
        return End(Outcome.CANCELLED, Cause.IDLE, attempt.idle)
    if attempt.stopped is not Cause.NONE:
        return End(attempt.stopped.value, attempt.stopped)
    if attempt.lost_ranks and not (failure and (failure.unsaved or blame_of(failure) is Blame.NO_RETRY)):
        return End(Outcome.FAILED, Cause.INFRA, attempt.lost)
    asking = [each for each in attempt.exits if each.code == EXIT_REQUEUE]
    may_be_caused = failure is None or (blame_of(failure) > Blame.FAILED and not failure.unsaved)
    if failure is not None and not (may_be_caused and any(not each.sent for each in asking)):
        return _after(failure, attempt)
    if asking:
        reason = "the ranks stopped at a step boundary and ask to be started again"
        return End(Cause.PREEMPTED.value, Cause.PREEMPTED, reason)
    return End(Outcome.SUCCEEDED)


def _after(failure: Culprit, attempt: EndedAttempt) -> End:
    """Judge an attempt in which a rank failed."""
    cause = cause_of(failure, folder_lost=bool(attempt.folders_lost))
    used = list(attempt.restarts).count(cause)
    no = restart.refusal(Restarter.LEADER, cause, attempt.retry, used, attempt.stalled)
    if attempt.lost or attempt.folders_lost:  # no rank can start again without the node, or without the code
        return End(Outcome.FAILED, cause, attempt.lost or attempt.folders_lost, failure, cause)
    if no is Refusal.NO_PROGRESS:
        reason = f"{attempt.stalled} attempts in a row ended without a new checkpoint"
        return End(Outcome.FAILED, Cause.NO_PROGRESS, reason, failure, cause)
    if no is not None or (attempt.has_spares and is_machines_fault(failure)):
        # With spare machines, the submitting side or the job starts the ranks again on a spare, from the same budget.
        unsaved = f"training is done, and its final weights are on no disk: {failure.unsaved}"
        return End(Outcome.FAILED, cause, unsaved if cause is Cause.CHECKPOINT else "", failure, cause)
    return End(Outcome.FAILED, cause, "", failure, cause, again=True)


def who_was_lost(lost: Mapping[int, str], deserters: Mapping[int, float], name: Callable[[list[int]], str]) -> str:
    """Return a text that says which nodes were lost and why. Nodes with the same reason are named together.

    `deserters` has each node that left because node 0's process was paused for too long, with the length of the pause
    in seconds. Node 0 is to blame for such an end.
    """
    together: dict[str, list[int]] = {}
    for node, reason in sorted(lost.items()):
        if node not in deserters:
            together.setdefault(reason, []).append(node)
    words = []
    if deserters:
        seconds, left = max(deserters.values()), name(sorted(deserters))
        words = [f"{name([0])} did not run for {seconds:.0f} s (stopped, or suspended), and {left} left it"]
    return "; ".join([
        *words,
        *(f"{name(nodes)} {'was' if len(nodes) == 1 else 'were'} lost: {why}" for why, nodes in together.items()),
    ])  # fmt: skip


# -- the culprit


def culprit_of(exits: Sequence[Culprit]) -> Culprit | None:
    """Return the rank exit that made the attempt fail (the culprit), or None if no rank failed.

    The rank that is most to blame is the culprit and, of several, the one that ended first on its node. If all failures
    may have been caused by others, and a rank left ranks that waited for it with exit code 0, that rank is the culprit.
    """
    exits = sorted(exits, key=lambda end: (end.after, end.rank))
    failures = [each for each in exits if each.code not in (0, EXIT_REQUEUE)]
    if not failures:
        return None
    culprit = min(failures, key=blame_of)
    if blame_of(culprit) > Blame.AT_EXIT and (leaver := _early_leaver(exits)) is not None:
        return leaver
    all_ended = all(each.code == 0 or each.finished for each in exits)
    return replace(culprit, at_exit=True) if culprit.finished and all_ended else culprit


def _early_leaver(exits: Sequence[Culprit]) -> Culprit | None:
    """Return the exit of the first rank that exited with 0 while other ranks waited for it, or None."""
    left = [each for each in exits if each.code == 0 and not each.sent]
    waited = [each for each in exits if not each.sent and blame_of(each) in (Blame.HUNG, Blame.VICTIM)]
    if not left or not waited:
        return None
    error = waited[0].error
    said = f"{error.type}: {error.message}" if error is not None and error.type else ""
    ranks = tuple(sorted(each.rank for each in left))
    return replace(left[0], left_early=LeftEarly(ranks, tuple(sorted(each.rank for each in waited)), said))
