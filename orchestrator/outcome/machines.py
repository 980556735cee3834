"""The machines of a run's next start: which may take a lost machine's place, and whether there are enough."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.protocol.events import AttemptFailed, Event, of

Host = TypeVar("Host")


@dataclass(frozen=True)
class Choice(Generic[Host]):
    """The machines that take the places of lost ones, the nodes that remain without a machine, and the verdict."""

    replaced: dict[int, Host]
    without: tuple[int, ...]
    is_enough: bool  # else the run waits for the machines of `without`


def candidates(machines: Iterable[Host], taken: Collection[Host], former: Collection[Host]) -> list[Host]:
    """Return the machines of the profile that no node uses. Machines of former starts come last: they may be back."""
    return sorted((each for each in machines if each not in taken), key=lambda each: each in former)


def choose(nodes: Collection[int], lost: Collection[int], free: Sequence[Host], min_nodes: int | None) -> Choice[Host]:
    """Return which free machines replace the lost ones, in order, and whether the start has enough nodes then."""
    replaced = dict(zip(sorted(lost), free))
    without = tuple(node for node in sorted(lost) if node not in replaced)
    return Choice(replaced, without, not without or len(nodes) - len(without) >= (min_nodes or len(nodes)))


def nodes_to_avoid(events: Iterable[Event], attempt: int) -> set[int]:
    """Return the node, by its number then, whose GPU or driver ended the attempt before this one."""
    from orchestrator.outcome.rules import is_machines_fault

    culprits = [event.culprit for event in of(events, AttemptFailed) if event.attempt == attempt - 1]
    return {each.node for each in culprits if each.node is not None and is_machines_fault(each)}
