"""The leader's record of one attempt: which ranks ended, which nodes are ready to start their ranks, and which nodes
are idle. The module does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from orchestrator.node.agent.fitness import where_missing
from orchestrator.node.agent.hang import HangSearch
from orchestrator.node.agent.missing_module import missing_module_of
from orchestrator.node.agent.roster import Roster
from orchestrator.outcome.success import exited_well
from orchestrator.outcome.verdict import Cause
from orchestrator.protocol.messages import RankEnded, Ready, Unused
from orchestrator.protocol.rank_reports import Culprit, RankEnd
from orchestrator.protocol.samples import lasting
from orchestrator.protocol.typed import converted


@dataclass
class Attempt:
    """The facts that the leader knows about one attempt."""

    roster: Roster
    hang: HangSearch
    in_use: set[int]  # the nodes that are neither idle nor lost
    ready: dict[int, Ready] = field(default_factory=dict)
    exits: list[Culprit] = field(default_factory=list)
    bad: set[int] = field(default_factory=set)  # the nodes on which a rank has failed
    done: set[int] = field(default_factory=set)  # the nodes whose last rank has ended by itself
    stopped: Cause = Cause.NONE  # why the ranks were ordered to stop; NONE if a failure is the reason
    # The time at which the ranks are stopped, if the cause of a rank's failure is not reported earlier.
    settle_at: float | None = None
    unused: dict[int, Unused] = field(default_factory=dict)  # the nodes that are idle
    sought: str = ""  # the module that a rank failed to import, for which every node searches
    lacking: set[int] = field(default_factory=set)  # the nodes that lack this module

    def note_report(self, node: int, report: RankEnded) -> None:
        """Record a rank's end."""
        self.note(converted(report, Culprit, node=node, host=self.roster.host_of(node)))
        self.hang.standstill.forget(report.rank)
        if report.left == 0:
            self.done.add(node)
            self.hang.standstill.drop(node)

    def note(self, end: Culprit) -> None:
        """Record the end of a rank that ended, or that the leader ends because it hangs."""
        self.exits.append(end)
        if not exited_well(end) and end.node is not None:
            self.bad.add(end.node)

    def ended_well(self, node: int) -> bool:
        """Return whether all ranks of the node have exited with 0. If the node is lost later, this is still True."""
        return node in self.done and node not in self.bad

    def lose(self, node: int) -> None:
        """Stop waiting for the ranks of a lost node."""
        self.in_use.discard(node)
        self.hang.standstill.drop(node)

    # -- a missing module: the other ranks are stopped before they can report it, so every node must search for it

    def seeks(self, report: RankEnd) -> str:
        """Return the name of the module for which every node must search, because this rank failed to import it. Return
        "" if no search is needed.
        """
        task, module = self.roster.task, missing_module_of(report)
        # A `command:` may use another interpreter than the launcher's.
        if not module or self.sought or task.nnodes == 1 or task.program.kind == "command":
            return ""
        self.sought = module
        return module

    def with_lacking(self, culprit: Culprit) -> Culprit:
        """Return the failed rank's report, extended by a text that lists the nodes on which the missing module is not
        installed.
        """
        module = missing_module_of(culprit)
        if not module or module != self.sought:
            return culprit
        own = {each.node for each in self.exits if each.node is not None and missing_module_of(each) == module}
        lacks = where_missing(self.roster.task, module, self.lacking | own, self.ready, self.roster.host_of)
        return replace(culprit, lacks=lacks)

    # -- idle nodes

    def note_unused(self, node: int, report: Unused) -> bool:
        """Record that a node is idle, according to the node's report. Return whether all nodes are idle now."""
        self.unused[node] = report
        self.in_use.discard(node)
        return not self.in_use

    def note_used(self, node: int) -> bool:
        """Record that a node is busy again. Return whether all nodes were idle before."""
        was_unused = self.unused.pop(node, None) is not None
        is_first = was_unused and not self.in_use
        if was_unused:
            self.in_use.add(node)
        return is_first

    def idleness(self) -> tuple[int, str]:
        """Return for how many seconds all nodes have been idle, and a text with the use of their devices meanwhile."""
        use = ", ".join(dict.fromkeys(each.use for _, each in sorted(self.unused.items())))
        return min((each.seconds for each in self.unused.values()), default=0), use

    def how_idle(self) -> str:
        """Return a text that explains why an idle run is ended."""
        seconds, use = self.idleness()
        return f"it was idle ({use}) on all nodes for {lasting(seconds)}, and the job says idle.do: cancel"
