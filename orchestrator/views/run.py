"""The view of one run: its state, nodes, ranks and timeline, and how it ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from orchestrator.outcome.verdict import NodeState, NodeStatus, Outcome, Verdict
from orchestrator.protocol.events import Event
from orchestrator.runs.state import AttemptSummary, RunState
from orchestrator.views.runs import RunRow
from orchestrator.views.timeline import Timeline, timeline_of

Beat = Mapping[str, Any]
Use = Mapping[str, float]
"""The use of a rank's resources (`cpu`, `gpu`, `waits`), each as a share from 0 to 1."""


class RankStatus(StrEnum):
    """The status of one rank in the newest attempt."""

    WAITING = "waiting"  # not started yet
    RUNNING = "running"
    DONE = "done"  # ended with exit code 0, or its run succeeded
    STOPPED = "stopped"  # orch ended it, because another rank had failed or the run was cancelled
    FAILED = "failed"
    LOST = "lost"  # its node is lost


_TROUBLE: Final = (
    RankStatus.FAILED, RankStatus.LOST, RankStatus.STOPPED, RankStatus.WAITING, RankStatus.RUNNING, RankStatus.DONE,
)  # fmt: skip
ENDED_BADLY: Final = (RankStatus.FAILED, RankStatus.LOST)


@dataclass(frozen=True)
class RankRow:
    """One rank of the newest attempt: its status, its newest heartbeat, and the use of its resources."""

    rank: int
    node: int
    host: str
    state: RankStatus
    end: str = ""  # how the rank ended, such as `exit code 1` or `SIGKILL`
    step: int | None = None
    step_time: float | None = None  # seconds per step, between the newest two heartbeats that were read
    phase: str = ""
    loss: float | None = None
    use: Use = field(default_factory=dict)


@dataclass(frozen=True)
class NodeRow:
    """One node. `ranks` is (the node's first rank, its last rank + 1)."""

    node: int
    host: str
    state: NodeStatus
    ranks: tuple[int, int] | None = None
    unreachable: str = ""  # the reason if the node is unreachable


@dataclass(frozen=True)
class RunView:
    """The facts about one run that `orch top` and the web page show."""

    row: RunRow
    folder: str
    attempt: int
    master: str
    job: str | None
    progress: Beat | None
    last_line: str
    detail: str
    verdict: Verdict | None
    nodes: tuple[NodeRow, ...]
    ranks: tuple[RankRow, ...]
    timeline: Timeline
    attempts: tuple[AttemptSummary, ...] = ()
    result: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


def worst_ranks(ranks: Iterable[RankRow]) -> tuple[RankRow, ...]:
    """Return the ranks sorted by status, failed and lost ranks first, and then by step time, the slowest first."""
    return tuple(sorted(ranks, key=lambda each: (_TROUBLE.index(each.state), -(each.step_time or 0.0), each.rank)))


def run_view(
    state: RunState, row: RunRow, folder: str, events: Iterable[Event], now: float, *,
    beats: Mapping[int, Beat] | None = None, step_times: Mapping[int, float] | None = None,
    uses: Mapping[int, Use] | None = None, last_line: str = "", result: Mapping[str, Any] | None = None,
    wanted: Collection[RankStatus] = tuple(RankStatus),
) -> RunView:  # fmt: skip
    """Return the view of a run from its state and events, and from each rank's heartbeat, step time and use of
    resources. The view has only the ranks whose status is in the argument `wanted`.
    """
    beats = beats or {}
    nodes = tuple(
        NodeRow(node.node, node.host, node.state, node.ranks, node.unreachable.why if node.unreachable else "")
        for node in state.nodes
    )
    ranks = tuple(
        _rank(rank, node, status, beats.get(rank, {}), (step_times or {}).get(rank), (uses or {}).get(rank, {}))
        for node in state.nodes
        for rank in range(*(node.ranks or (0, 0)))
        if (status := _status(rank, node, state)) in wanted
    )
    left = [f"not here: {each.host}:{each.folder}: {each.reason}" for each in state.left]
    return RunView(
        row, folder, state.attempt, state.master, state.job, beats.get(0), last_line, state.detail,
        state.verdict, nodes, ranks, timeline_of(state, events, now), state.attempts, result, tuple(left),
    )  # fmt: skip


def _rank(rank: int, node: NodeState, status: RankStatus, beat: Beat, step_time: float | None, use: Use) -> RankRow:
    step, phase, loss = beat.get("step"), beat.get("phase"), beat.get("loss")
    return RankRow(
        rank, node.node, node.host, status, node.exits.get(rank, ""),
        step if isinstance(step, int) else None, step_time, phase if isinstance(phase, str) else "",
        float(loss) if isinstance(loss, int | float) else None, use,
    )  # fmt: skip


def _status(rank: int, node: NodeState, state: RunState) -> RankStatus:
    end = node.exits.get(rank, "")
    if end == "exit code 0":
        return RankStatus.DONE
    if end:
        blamed = state.verdict.rank if state.verdict is not None else None
        is_asked = end in ("SIGTERM", "SIGKILL", "exit code 95") and rank != blamed
        return RankStatus.STOPPED if is_asked else RankStatus.FAILED
    if state.verdict is not None and state.verdict.outcome is Outcome.SUCCEEDED:
        return RankStatus.DONE  # its agent could not report its end
    if node.state is NodeStatus.LOST:
        return RankStatus.LOST
    if node.state is NodeStatus.RUNNING:
        return RankStatus.RUNNING
    return RankStatus.WAITING if not node.state.final else RankStatus.STOPPED
