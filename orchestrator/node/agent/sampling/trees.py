"""Finds the processes of each rank: its main process and all descendants. Scans of /proc are costly, so they are
rare.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping

from orchestrator.node.system.processes import parent_of, status_of, variable_of

SCAN_SECONDS = 10.0
SHARE = 1000  # scans of all processes take at most this fraction (1/SHARE) of the time


class RankTrees:
    """The processes of each rank on this node."""

    def __init__(self) -> None:
        self.roots: dict[int, int] = {}
        self.found: dict[int, list[int]] = {}
        self.due = 0.0

    def of(self, roots: Mapping[int, int], *, ask_for_rank: bool) -> dict[int, list[int]]:
        """Return the processes of each rank. `roots` maps each rank to the process that was started for it.

        ask_for_rank: whether another launcher, such as torchrun, starts the ranks. In this case the rank of each
        process is read from its environment.
        """
        now = time.monotonic()
        if roots != self.roots or now >= self.due:
            pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
            trees = trees_below(roots, [(pid, parent_of(pid)) for pid in pids])
            self.roots = dict(roots)
            self.found = _by_own_rank(trees) if ask_for_rank else trees
            took = time.monotonic() - now
            self.due = now + max(SCAN_SECONDS, SHARE * took)
        return self.found


def trees_below(roots: Mapping[int, int], parents: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Return each rank's root process with all its descendants. `parents` yields pairs (process, its parent)."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents:
        children.setdefault(parent, []).append(pid)
    found = {}
    for rank, root in roots.items():
        tree = [root]
        for pid in tree:  # the loop also visits the processes that it adds
            tree += children.get(pid, [])
        found[rank] = tree
    return found


def _by_own_rank(trees: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """Return the processes of each rank, which is the value of the variable RANK in their environment. Processes
    without RANK, such as torchrun itself, are left out.
    """
    found: dict[int, list[int]] = {}
    for pid in (pid for tree in trees.values() for pid in tree):
        rank = variable_of(pid, "RANK")
        if rank.isdecimal():
            found.setdefault(int(rank), []).append(pid)
    return found


def on_host(pids: Mapping[int, int], candidates: Iterable[int]) -> dict[int, int]:
    """Return each rank's pid on the host. `pids` maps each rank to its pid in the container, and `candidates` are pids
    on the host.
    """
    inside = {int(found[-1]): each for each in candidates if (found := status_of(each, "NSpid").split())}
    return {rank: inside[pid] for rank, pid in pids.items() if pid in inside}
