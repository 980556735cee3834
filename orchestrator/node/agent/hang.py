"""Finds the rank for which the other ranks wait, in a hang or in a start that does not proceed. The module does no I/O.

When a rank has been silent for half of its limit, the leader requests the stacks of all ranks. When a rank has exceeded
its whole limit, the leader requests them again. It then blames a rank once all nodes have answered or timed out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Callable

from orchestrator.node.agent.missing_rank import missing_rank
from orchestrator.node.agent.roster import Roster
from orchestrator.node.agent.stall_detector import DEFAULT_LIMITS, culprit_of_hang
from orchestrator.node.agent.standstill import Standstill
from orchestrator.node.agent.start_watch import why_it_waits
from orchestrator.protocol import events
from orchestrator.protocol.messages import Moved, Order, Patience, Report, ReportStacks, StacksFound, Stalled, Waits
from orchestrator.protocol.rank_reports import Culprit, ProcessGroup, RankError, RankStack
from orchestrator.protocol.typed import Handlers

HANG_SETTLE_SECONDS = 2.5  # seconds until the stalls of every node are known
STACKS_SECONDS = 8.0  # after this time, the leader stops waiting for a node's stacks
STACKS_EVERY = 20.0  # seconds between two requests


HANDLERS = Handlers(Report)
WHILE_RANKS_RUN = (Stalled, Waits)  # after the ranks were ordered to stop, these reports are ignored


class HangSearch:
    """Searches for the cause of a hang in one attempt, from the stalls and the stacks of the ranks. `ask` sends an
    order to all nodes and returns these nodes.
    """

    def __init__(
        self,
        hang: Mapping[str, Any],
        attempt: int,
        ask: Callable[[Order], set[int]],
        record: Callable[[events.Event], None],
    ) -> None:
        self.limits, self.action, self.attempt = hang, hang.get("action"), attempt
        self.ask, self.record = ask, record
        self.standstill = Standstill()
        self.stacks: dict[int, RankStack] = {}
        self.recorders: dict[int, Mapping[str, ProcessGroup]] = {}  # each rank's flight recorder
        self.asked: float | None = None
        self.owed: set[int] = set()  # nodes that have not sent their stacks yet
        self.due: float | None = None  # the time at which a rank will be blamed
        self.waits: Waits | None = None  # node 0's report that none of its ranks computes, until the reason is known
        self.why_waiting = ""

    @HANDLERS.add
    def _on_stalled(self, node: int, stall: Stalled, now: float) -> None:
        """Record a stalled rank. Request the stacks of all ranks, unless they were requested a moment ago."""
        self.standstill.note(node, stall, now)
        if self.asked is None or now > self.asked + STACKS_EVERY:
            self._request(now)
        self.look(now)

    @HANDLERS.add
    def _on_moved(self, node: int, report: Moved, now: float) -> None:
        if self.standstill.forget(report.rank):
            self.record(events.Moved(self.attempt, report.rank))

    @HANDLERS.add
    def _on_patience(self, node: int, report: Patience, now: float) -> None:
        self.standstill.be_patient(node, report.seconds, now)

    def _request(self, now: float) -> None:
        self.asked, self.owed = now, self.ask(ReportStacks())

    @HANDLERS.add
    def _on_stacks_found(self, node: int, found: StacksFound, now: float) -> None:
        self.record(events.Stacks(self.attempt, found.ranks, found.recorders))
        self.owed.discard(node)
        self.stacks.update(found.ranks)
        self.recorders.update({rank: groups for rank, groups in found.recorders.items() if groups})

    def look(self, now: float) -> None:
        """Record the ranks that have begun to hang since the last call. Begin the search for the culprit, or end the
        search if no rank hangs now.
        """
        hung = self.standstill.hung(now)
        for each in self.standstill.newly(hung, now):
            facts = (each.rank, round(each.seconds, 1), each.full, each.phase, each.step, each.limit)
            self.record(events.Stalled(self.attempt, *facts))
        # If a program sends no heartbeats, its output is watched, and it is ended for silence only if the job requests
        # this.
        is_enough = self.action == "restart" or (self.action == "auto" and any(each.phase != "output" for each in hung))
        if not (hung and is_enough):
            self.due = None
        elif self.due is None:
            self.due = now + HANG_SETTLE_SECONDS
            self.stacks, self.recorders = {}, {}  # these may be left from an earlier hang that has resolved itself
            self._request(now)

    def lose_heartbeats(self, node: int) -> None:
        """Give the ranks of a node without heartbeats more time, because they may be in a phase with a longer limit."""
        self.standstill.unseen[node] = float(self.limits.get("other", DEFAULT_LIMITS["other"]))

    def slept(self, seconds: float) -> None:
        """Do not count `seconds`, for which the leader's process was paused, as silence of the ranks."""
        self.due = self.due and self.due + seconds
        self.standstill.slept(seconds)

    def is_known(self, now: float, lost: Collection[int]) -> bool:
        """Return whether enough is known to blame a rank for the hang."""
        if self.due is None or now < self.due:
            return False
        return not self.owed.difference(lost) or now >= self.due + STACKS_SECONDS

    def culprit(self, host_of: Callable[[int], str]) -> Culprit:
        """End the search. Return a report on the rank for which the other ranks wait."""
        missing = missing_rank(self.recorders)
        stall = culprit_of_hang(self.standstill.full(), self.stacks, missing)
        seen = self.stacks.get(stall.rank, RankStack())
        how = "; it is stopped (SIGSTOP)" if seen.state in ("T", "t") else ""
        how += f"; {missing.words}" if missing is not None and missing.rank == stall.rank else ""
        how += f"; {self.why_waiting}" if self.why_waiting else ""
        words = (
            f"rank {stall.rank} has stood still in {stall.phase} at step {stall.step} "
            f"for {stall.seconds:.0f} s (limit {stall.limit:.0f} s){how}"
        )
        self.due = None
        return Culprit(
            stall.rank, error=RankError("Hang", words, "\n".join(seen.frames)),
            tail=seen.frames, hang=True, node=stall.node, host=host_of(stall.node), in_collective=seen.in_collective,
        )  # fmt: skip

    # -- a start that does not proceed

    @HANDLERS.add
    def _on_waits(self, node: int, report: Waits, now: float) -> None:
        """Handle a report on whether any rank of node 0 computes. If none does, request the stacks of all ranks. If a
        rank computes again, withdraw the recorded explanation of why the start does not proceed.
        """
        self.waits = report if report.seconds else None
        if self.waits is not None:
            self._request(now)
        elif self.why_waiting:
            self.why_waiting = ""
            self.record(events.Unjoined(self.attempt, ""))

    def explain(self, roster: Roster, exits: Iterable[Culprit]) -> None:
        """Once all stacks have arrived, record which ranks have not joined the process group, if any."""
        if self.waits is None or self.owed:
            return
        waits, self.waits = self.waits, None
        self.why_waiting = why_it_waits(
            self.stacks, roster.world, [each.rank for each in exits], waits.seconds, waits.unused_port
        )
        if self.why_waiting:
            self.record(events.Unjoined(self.attempt, self.why_waiting))
