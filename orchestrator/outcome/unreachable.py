"""Decides which nodes count as gone while their machines can't be reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestrator.outcome.restart import newest_start
from orchestrator.outcome.success import has_succeeded
from orchestrator.protocol.events import Cancel, Event, GangEnded, GaveUp, of

UNREACHABLE_SECONDS = 12.0  # seconds after which an agent that lost its gang has ended its ranks


def counted_out(
    since: Mapping[int, float], nodes: int, events: Iterable[Event], *, marked: object, grace: float, now: float
) -> set[int]:
    """Return the unreachable nodes that count as gone.

    `since` maps each unreachable node to the time of its last answer. A node counts as gone if it can no longer change
    the outcome of the run. This is true in each of these cases:

    1. The gang has ended.
    2. The recorded exits already prove a success. `marked` is the attempt that rank 0 has recorded as successful.
    3. The `grace` period after a cancel is over. Within this period the node would have saved a checkpoint.
    4. The node is node 0, and another node has left the gang because node 0 was silent.
    """
    events = newest_start(events)
    by_node = {node: [event for event in events if event.node == node] for node in range(nodes)}
    is_over = (
        any(event.node == 0 for event in of(events, GangEnded))
        or has_succeeded(by_node, marked)
        or any(now - event.time > (0.0 if event.now else grace) for event in of(events, Cancel))
    )
    is_deserted = any(event.node != 0 for event in of(events, GaveUp))
    away = {node for node, at in since.items() if now - at > UNREACHABLE_SECONDS}
    return away if is_over else away & {0} if is_deserted else set()
