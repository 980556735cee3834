"""Builds the sentences that describe how a rank ended."""

from __future__ import annotations

import re
from collections.abc import Sequence

from orchestrator.protocol.hostlist import in_words
from orchestrator.protocol.quantities import size
from orchestrator.protocol.rank_reports import Culprit, LeftEarly, RankEnd, RankError

MEMORY = ("allocated", "reserved", "total")  # fields of an error file that are numbers of bytes
_EXIT_OF_ARGPARSE = 2


def error_of(end: RankEnd) -> RankError | None:
    """Return the error that a rank reported, or None if the rank reported no error or an empty one."""
    return end.error if end.error is not None and (end.error.type or end.error.message) else None


def culprit_in_words(culprit: Culprit) -> str:
    """Return a sentence on how the rank that is to blame ended."""
    error, where = error_of(culprit), f"on node {culprit.node} ({culprit.host})"
    if culprit.left_early is not None:
        return _left_early_in_words(culprit.left_early, culprit.rank, f"rank {culprit.rank} {where}")
    if culprit.hang:
        return f"{error.message if error is not None and error.message else 'a rank stood still'} {where}"
    if culprit.at_exit:
        return (
            f"rank {culprit.rank} {where} ended with {culprit.how} while it exited; the programs of all ranks had ended"
        )
    from orchestrator.outcome.ends import is_oom  # commands that list runs rarely need it

    how, by_kernel = culprit.how, is_oom(culprit)
    if by_kernel and culprit.signal == "SIGKILL":
        how = "SIGKILL, from the kernel: its cgroup ran out of memory"
    what = f"{error.type}: {error.message}".splitlines()[0][:200] if error is not None and error.type else how
    if what == how and culprit.code == _EXIT_OF_ARGPARSE:
        what = _refused_arguments(culprit.tail) or how
    if by_kernel and culprit.signal != "SIGKILL":
        what += "; the kernel killed a process of this rank's cgroup, which ran out of memory"
    rank = culprit.rank if culprit.failed_rank is None else culprit.failed_rank  # the rank that torchrun blames
    return f"rank {rank} {where} ended with {how}{f': {what}' if what != how else ''}"


def _refused_arguments(tail: Sequence[str]) -> str:
    """Return why argparse or click rejected the rank's arguments, from the last line of its log. Return "" if the last
    line is not such an error.
    """
    last = next((line for line in reversed(tail) if line.strip()), "")
    found = re.fullmatch(r"(?:\S+: error|Error): (.+)", last.strip())
    return found[1][:200] if found else ""


def _left_early_in_words(early: LeftEarly, rank: int, who: str) -> str:
    """Return a sentence on ranks that exited with 0 while other ranks still waited for them."""
    others = [str(each) for each in early.ranks if each != rank]
    too = f", as rank{'s' * (len(others) > 1)} {in_words(others)} did," if others else ""
    waited = f"rank{'s' * (len(early.waited) > 1)} {in_words(map(str, early.waited))}"
    how = f": {early.said.splitlines()[0][:200]}" if early.said else ""
    return f"{who} ended with exit code 0{too} while {waited} waited for it{how}"


def memory_in_words(error: RankError | None) -> list[str]:
    """Return lines on the peak GPU memory of a rank whose torch ran out of GPU memory; empty for any other error."""
    if error is None or not error.memory.keys() >= set(MEMORY):
        return []
    allocated, reserved, total = (size(error.memory[name]) for name in MEMORY)
    peak = f"at its peak torch had {allocated} in tensors, and {reserved} of the GPU's {total} reserved"
    return [peak, *([f"orch outputs has a snapshot of it, {error.snapshot}"] if error.snapshot else [])]


def kernel_words(culprit: Culprit) -> list[str]:
    """Return a list with one sentence: the kernel's last message about the host's GPU when the rank ended. The list is
    empty if there is no message.
    """
    return [f"the kernel of {culprit.host} said: {culprit.kernel[-1][:300]}"] if culprit.kernel else []


def refused_saves(end: RankEnd) -> str:
    """Return a sentence on the checkpoints that a successful rank 0 could not save; "" if all were saved."""
    if not end.saves_failed:
        return ""
    return f"{end.saves_failed} of {end.saves} checkpoints could not be written, the last one was"
