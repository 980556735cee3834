"""Which unreachable nodes count as gone: a table of what the others have recorded."""

from __future__ import annotations

import pytest

from orchestrator.outcome.unreachable import UNREACHABLE_SECONDS, counted_out
from orchestrator.protocol.events import Event
from tests.events import event

NOW, GRACE = 1000.0, 30.0
LONG, SHORT = NOW - UNREACHABLE_SECONDS - 1, NOW - UNREACHABLE_SECONDS + 1
RUNNING = [
    event("go", 0, attempt=1, world_size=2),
    *(event("started", node, attempt=1, ranks=[node, node + 1]) for node in (0, 1)),
]
EXITS = [event("rank_exit", node, attempt=1, rank=node, code=0) for node in (0, 1)]
ENDED = event("gang_ended", 0, attempt=1, outcome="failed", cause="infra", reason="node 1 was lost")
LEFT = event("gave_up", 1, outcome="failed", cause="infra", reason="node 1 lost node 0")


@pytest.mark.parametrize(
    ("events", "marked", "since", "gone"),
    [
        (RUNNING, 1, {1: LONG}, set()),
        ([*RUNNING, ENDED], None, {1: LONG}, {1}),
        ([*RUNNING, ENDED], None, {1: SHORT}, set()),
        ([*RUNNING, ENDED], None, {0: LONG, 1: SHORT}, {0}),
        ([*RUNNING, *EXITS], 1, {0: LONG, 1: LONG}, {0, 1}),
        ([*RUNNING, *EXITS], None, {1: LONG}, set()),
        ([*RUNNING, *EXITS], 0, {1: LONG}, set()),  # the marker is of an earlier attempt
        ([*RUNNING, EXITS[0]], 1, {1: LONG}, set()),
        ([*RUNNING, LEFT], None, {0: LONG, 1: LONG}, {0}),
        ([*RUNNING, event("cancel", time=NOW - GRACE + 1)], None, {1: LONG}, set()),
        ([*RUNNING, event("cancel", time=NOW - GRACE - 1)], None, {1: LONG}, {1}),
        ([*RUNNING, event("cancel", time=NOW - 1, now=True)], None, {1: LONG}, {1}),
        ([ENDED, event("starting_again", start=1, attempt=2, cause="infra", reason="lost")], None, {1: LONG}, set()),
    ],
)
def test_a_node_out_of_reach_counts_as_gone_once_it_can_change_nothing(
    events: list[Event], marked: int | None, since: dict[int, float], gone: set[int]
) -> None:
    assert counted_out(since, 2, events, marked=marked, grace=GRACE, now=NOW) == gone
