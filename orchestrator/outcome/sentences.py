"""The sentences that say how a rank ended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orchestrator.outcome.verdict import Event, how_it_ended
from orchestrator.protocol.hostlist import in_words
from orchestrator.protocol.quantities import size

MEMORY = ("allocated", "reserved", "total")  # fields of an error file, in bytes
_EXIT_OF_ARGPARSE = 2


def items(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list, because it may be damaged."""
    return list(value) if isinstance(value, (list, tuple)) else []


def culprit_in_words(culprit: Event) -> str:
    """Return a sentence on how the first failed rank ended."""
    error = culprit.get("error")
    error = error if isinstance(error, Mapping) and error else None
    how = how_it_ended(culprit.get("code"), culprit.get("signal"))
    if culprit.get("oom") and not culprit.get("worker_killed"):
        how = "SIGKILL, from the kernel: its cgroup ran out of memory"
    what = f"{error['type']}: {error.get('message')}".splitlines()[0][:200] if error and error.get("type") else how
    if what == how and culprit.get("code") == _EXIT_OF_ARGPARSE and (said := _refused_arguments(culprit)):
        what = said
    if culprit.get("oom") and culprit.get("worker_killed"):
        what += "; the kernel killed a process of this rank's cgroup, which ran out of memory"
    where = f"on node {culprit.get('node')} ({culprit.get('host', '?')})"
    if isinstance(early := culprit.get("left_early"), Mapping):
        return _left_early_in_words(early, f"rank {culprit.get('rank')} {where}", culprit.get("rank"))
    if culprit.get("hang"):
        return f"{error.get('message', 'a rank stood still') if error else 'a rank stood still'} {where}"
    rank = culprit.get("failed_rank", culprit.get("rank"))  # `failed_rank` is a rank of another launcher
    return f"rank {rank} {where} ended with {how}{f': {what}' if what != how else ''}"


def _refused_arguments(culprit: Event) -> str:
    """Return why argparse or click refused the command line, from the rank's last line; "" for any other line."""
    last = next((str(line) for line in reversed(items(culprit.get("tail"))) if str(line).strip()), "")
    found = re.fullmatch(r"(?:\S+: error|Error): (.+)", last.strip())
    return found[1][:200] if found else ""


def _left_early_in_words(early: Mapping[str, Any], who: str, rank: Any) -> str:
    """Return a sentence on ranks that ended with 0 while other ranks still waited for them."""
    others = [str(each) for each in items(early.get("ranks")) if each != rank]
    too = f", as rank{'s' * (len(others) > 1)} {in_words(others)} did," if others else ""
    waited = [str(each) for each in items(early.get("waited"))]
    said = str(early.get("said") or "").splitlines()[:1]
    how = f": {said[0][:200]}" if said else ""
    return (
        f"{who} ended with exit code 0{too} while rank{'s' * (len(waited) > 1)} {in_words(waited)} waited for it{how}"
    )


def memory_in_words(error: Mapping[str, Any] | None) -> list[str]:
    """Return the peak GPU memory of the rank's torch if it ran out of memory, as lines."""
    memory = error.get("memory") if error else None
    if not isinstance(memory, Mapping) or not all(isinstance(memory.get(name), int) for name in MEMORY):
        return []
    allocated, reserved, total = (size(memory[name]) for name in MEMORY)
    peak = f"at its peak torch had {allocated} in tensors, and {reserved} of the GPU's {total} reserved"
    snapshot = error.get("snapshot") if error else None
    return [peak, *([f"orch outputs has a snapshot of it, {snapshot}"] if isinstance(snapshot, str) else [])]


def kernel_words(culprit: Event) -> list[str]:
    """Return the kernel's message about the host's GPU when the rank ended, if any, as lines."""
    said = [str(line) for line in items(culprit.get("kernel"))]
    return [f"the kernel of {culprit.get('host', '?')} said: {said[-1][:300]}"] if said else []


def refused_saves(exit_report: Event) -> str:
    """Return how many checkpoints of a successful rank 0 could not be saved; "" if all were."""
    saves, failed = (exit_report.get(name) for name in ("saves", "saves_failed"))
    return f"{failed} of {saves} checkpoints could not be written, the last one was" if failed else ""
