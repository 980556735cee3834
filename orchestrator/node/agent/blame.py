"""Decides which rank's end made an attempt fail, and which retry budget the failure draws on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.protocol.gpu_errors import Blame, gpu_error_of
from orchestrator.protocol.rank_reports import Culprit, LeftEarly, RankEnd
from orchestrator.protocol.ranks import EXIT_NO_RETRY, EXIT_REQUEUE

STOPPED_BY_US = ("SIGTERM", "SIGKILL")


def cause_of(failure: RankEnd) -> str:
    """Return the retry budget that an ended rank draws on. `checkpoint` and `no_retry` have no budget."""
    if failure.unsaved:
        return "checkpoint"
    if isinstance(failure, Culprit) and failure.left_early:
        return "user_error"
    if failure.code == EXIT_NO_RETRY:
        return "no_retry"
    if failure.victim:
        return "infra"  # a peer went away, and no rank failed by itself: the network, or a machine
    if failure.oom:
        return "infra"  # the kernel killed the rank, or killed a child process and the rank then raised an exception
    gpu_error = gpu_error_of(failure)
    if gpu_error is not None and gpu_error.blame is not Blame.PROGRAM:
        return "infra"
    if failure.error_type not in (None, "LauncherLost", "Hang"):
        return "user_error"  # an exception, even if the interpreter then died of a signal while tearing down
    return "infra" if failure.signal or (isinstance(failure, Culprit) and failure.hang) else "user_error"


def culprit_of(exits: Sequence[Culprit]) -> Culprit | None:
    """Return the exit that made the attempt fail; None if every rank ended in order.

    An exit that is a consequence of another exit does not count. If all failures are consequences, then a rank that
    left the others with exit code 0 is the culprit.
    """
    failures = [each for each in exits if each.code not in (0, EXIT_REQUEUE)]
    if not failures:
        return None
    own = [each for each in failures if not each.victim]
    before_stop = [each for each in own if not each.after_stop]
    after_stop = [each for each in own if each.after_stop and each.signal not in STOPPED_BY_US]
    if all(map(_waited_for_others, before_stop)) and (leaver := _early_leaver(exits)) is not None:
        return leaver
    return (before_stop or after_stop or failures)[0]


def _waited_for_others(end: Culprit) -> bool:
    """Tell whether the rank failed because it waited for another rank: it is a victim, or it hung in a collective."""
    return end.victim or (end.hang and bool(end.in_collective))


def _early_leaver(exits: Sequence[Culprit]) -> Culprit | None:
    """Return the exit of the first rank that left with 0 while others waited for it; None if there is no such rank.

    A victim's exit may arrive before the exit of the rank that it waited for, so the order does not count.
    """
    left = [each for each in exits if each.code == 0 and not each.after_stop and not each.stopped]
    waited = [each for each in exits if each.code != 0 and not each.after_stop and _waited_for_others(each)]
    if not left or not waited:
        return None
    error = waited[0].error
    said = f"{error.type}: {error.message}" if error is not None and error.type else ""
    ranks = tuple(sorted(each.rank for each in left))
    return replace(left[0], left_early=LeftEarly(ranks, tuple(sorted(each.rank for each in waited)), said))


def is_machines_fault(failure: RankEnd) -> bool:
    """Tell whether a rank ended for its host's GPU or driver, so that the next start is better made elsewhere."""
    gpu_error = gpu_error_of(failure)
    return gpu_error is not None and gpu_error.blame is Blame.MACHINE


def unsaved_in_words(failure: RankEnd) -> str:
    """Return the sentence on a training whose last checkpoint was not written."""
    return f"training is done, and its final weights are on no disk: {failure.unsaved}"
