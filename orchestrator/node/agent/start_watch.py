"""Explains why a start does not proceed: the ranks wait for processes that have not joined. The module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.protocol.hostlist import numbers_in_words
from orchestrator.protocol.rank_reports import RankStack
from orchestrator.protocol.samples import Sample, lasting

SECONDS = 60.0  # after this time without computation, the reason why the start does not proceed is recorded
BUSY_CORES, BUSY_GPU = 0.1, 5.0
_JOINS = ("in init_process_group", "/torch/distributed/rendezvous.py")
_SPAWNS = "/torch/multiprocessing/spawn.py"


@dataclass
class StartWatch:
    """Measures how long no rank of this node has computed in an attempt. A rank with heartbeats counts as busy."""

    attempt: int = -1
    seconds: float = 0.0
    is_reported: bool = False

    def add(self, sample: Sample) -> float | None:
        """Return the seconds without computation as soon as they reach SECONDS, and 0 when a rank computes again. In
        all other cases return None.
        """
        if sample.attempt != self.attempt:
            self.attempt, self.seconds, self.is_reported = sample.attempt, 0.0, False
        self.seconds = 0.0 if _is_busy(sample) else self.seconds + sample.seconds
        if self.is_reported == (self.seconds >= SECONDS) or (self.is_reported and self.seconds):
            return None
        self.is_reported = not self.is_reported
        return self.seconds


def _is_busy(sample: Sample) -> bool:
    by_ranks = any(rank.cpu >= BUSY_CORES or rank.phase for rank in sample.ranks)
    return not sample.ranks or by_ranks or any((gpu.use or 0.0) >= BUSY_GPU for gpu in sample.gpus)


def why_it_waits(
    stacks: Mapping[int, RankStack], world: Iterable[int], ended: Iterable[int], seconds: float, unused_port: int
) -> str:
    """Return a sentence about the ranks that have not joined the process group; "" if no rank waits for others to join.

    stacks: the stack of each rank's main thread. unused_port: the store's port if no process has connected to the port,
    else 0.
    """
    frames = {rank: "\n".join(seen.frames) for rank, seen in stacks.items()}
    joining = sorted(rank for rank, text in frames.items() if any(each in text for each in _JOINS))
    spawning = sorted(rank for rank, text in frames.items() if _SPAWNS in text and rank not in joining)
    if unused_port and (joining or spawning):
        does = "waits in init_process_group" if joining else "waits for processes that it has spawned"
        return (
            f"{_first(joining or spawning, stacks)} {does}, and for {lasting(seconds)} no process has connected to "
            f"orch's store at MASTER_PORT {unused_port}: the program has set another MASTER_ADDR, MASTER_PORT or "
            "init_method. Remove these, or start the program once: --nodes 1 --nproc-per-node 1"
        )
    others = sorted(set(world) - set(joining))
    if not joining or not others:
        return ""
    gone = sorted(set(ended) & set(others))
    which = f"; {_named(gone)} ended" if gone else ""
    return f"{_first(joining, stacks)} waits in init_process_group for {_named(others)}{which}"


def _first(ranks: list[int], stacks: Mapping[int, RankStack]) -> str:
    where = stacks[ranks[0]].where or ""
    return f"rank {ranks[0]}{f' ({where})' if where else ''}"


def _named(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {numbers_in_words(ranks)}"
