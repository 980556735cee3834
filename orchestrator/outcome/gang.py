"""Judges the end of one attempt: which failure is to blame, and whether the leader starts the ranks again. The gang
is the run's connected agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Callable

from orchestrator.outcome import restart
from orchestrator.outcome.restart import Budgets, Refusal, Restarter
from orchestrator.outcome.rules import cause_of, is_machines_fault
from orchestrator.outcome.verdict import Cause, Outcome
from orchestrator.protocol.rank_reports import Culprit, LeftEarly
from orchestrator.protocol.ranks import EXIT_REQUEUE

STOPPED_BY_US = ("SIGTERM", "SIGKILL")


@dataclass(frozen=True)
class EndedAttempt:
    """The facts that the leader has at the end of an attempt."""

    exits: Sequence[Culprit]  # the exits of all ranks, in the order in which the leader received them
    ended_well: bool  # whether every rank of every node ended well
    stopped: Cause = Cause.NONE  # why the leader stopped the ranks, if no failure was the reason
    lost: str = ""  # the nodes that were lost and why, as text
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
    3. If a node is lost, the gang can't start the ranks again. But if a rank had failed by itself before, this rank is
       to blame.
    4. Otherwise the earliest failure that another rank did not cause decides the cause. The budget for this cause
       decides whether another attempt follows.
    5. If a rank exits with code 95, it requests that the run is started again. New agents do this, so the gang ends.
    """
    failure = culprit_of(attempt.exits) or next((each for each in attempt.exits if each.unsaved), None)
    if attempt.ended_well:
        return End(Outcome.SUCCEEDED)
    if attempt.stopped is Cause.IDLE:
        return End(Outcome.CANCELLED, Cause.IDLE, attempt.idle)
    if attempt.stopped is not Cause.NONE:
        return End(attempt.stopped.value, attempt.stopped)
    if attempt.lost and (failure is None or _is_consequence(failure)):
        return End(Outcome.FAILED, Cause.INFRA, attempt.lost)
    if failure is not None:
        return _after(failure, attempt)
    if any(each.code == EXIT_REQUEUE for each in attempt.exits):
        reason = "the ranks stopped at a step boundary and ask to be started again"
        return End(Cause.PREEMPTED.value, Cause.PREEMPTED, reason)
    return End(Outcome.SUCCEEDED)


def _is_consequence(failure: Culprit) -> bool:
    """Return whether the loss of a node may have caused the rank's failure."""
    return failure.victim or failure.after_stop or failure.left_early is not None


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

    An exit that another exit caused does not count. A rank that died after its program had ended counts only if no other
    rank has failed by itself. If all failures are such consequences, the culprit is a rank that
    left the others with exit code 0.
    """
    failures = [each for each in exits if each.code not in (0, EXIT_REQUEUE)]
    if not failures:
        return None
    own = [each for each in failures if not each.victim]
    own = [each for each in own if not each.finished] or own
    before_stop = [each for each in own if not each.after_stop]
    after_stop = [each for each in own if each.after_stop and each.signal not in STOPPED_BY_US]
    if all(map(_waited_for_others, before_stop)) and (leaver := _early_leaver(exits)) is not None:
        return leaver
    culprit = (before_stop or after_stop or failures)[0]
    all_ended = all(each.code == 0 or each.finished for each in exits)
    return replace(culprit, at_exit=True) if culprit.finished and all_ended else culprit


def _waited_for_others(end: Culprit) -> bool:
    """Return whether the rank failed because it waited for another rank: its peer went away, or it hung in a
    collective.
    """
    return end.victim or (end.hang and bool(end.in_collective))


def _early_leaver(exits: Sequence[Culprit]) -> Culprit | None:
    """Return the exit of the first rank that exited with 0 while other ranks waited for it, or None.

    The exit of a waiting rank may be reported before the exit of the rank that it waited for, so the order of reports
    does not matter.
    """
    left = [each for each in exits if each.code == 0 and not each.after_stop and not each.stopped]
    waited = [each for each in exits if each.code != 0 and not each.after_stop and _waited_for_others(each)]
    if not left or not waited:
        return None
    error = waited[0].error
    said = f"{error.type}: {error.message}" if error is not None and error.type else ""
    ranks = tuple(sorted(each.rank for each in left))
    return replace(left[0], left_early=LeftEarly(ranks, tuple(sorted(each.rank for each in waited)), said))
