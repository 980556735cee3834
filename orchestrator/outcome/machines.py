"""Chooses the machines of a run's next start: which free machine replaces which lost machine, and whether there are
enough machines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.protocol.events import AttemptFailed, Event, of

Host = TypeVar("Host")


@dataclass(frozen=True)
class Choice(Generic[Host]):
    """The free machine that replaces each lost machine, the nodes that stay without a machine, and whether enough
    nodes remain for a start.
    """

    replaced: dict[int, Host]
    without: tuple[int, ...]
    is_enough: bool  # if False, the run waits for the machines of the nodes `without`


def candidates(machines: Iterable[Host], taken: Collection[Host], former: Collection[Host]) -> list[Host]:
    """Return the profile's machines that no node uses. Machines that an earlier start lost come last. They are included
    because they may work again.
    """
    return sorted((each for each in machines if each not in taken), key=lambda each: each in former)


def choose(nodes: Collection[int], lost: Collection[int], free: Sequence[Host], min_nodes: int | None) -> Choice[Host]:
    """Assign free machines to the lost nodes, in the order of the node numbers, and decide whether a start without the
    remaining lost nodes has enough nodes.
    """
    replaced = dict(zip(sorted(lost), free))
    without = tuple(node for node in sorted(lost) if node not in replaced)
    return Choice(replaced, without, not without or len(nodes) - len(without) >= (min_nodes or len(nodes)))


def nodes_to_avoid(events: Iterable[Event], attempt: int) -> set[int]:
    """Return the node whose GPU or driver ended the previous attempt, as a set with the node's number in that attempt.
    The set is empty if there is no such node.
    """
    from orchestrator.outcome.rules import is_machines_fault

    culprits = [event.culprit for event in of(events, AttemptFailed) if event.attempt == attempt - 1]
    return {each.node for each in culprits if each.node is not None and is_machines_fault(each)}
