"""The rows of `orch nodes` for a scheduler: its partitions or queues, with their nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Partition:
    """The nodes of one partition or queue. If the nodes of a partition differ in size, there is a Partition for
    each size.
    """

    name: str
    is_default: bool
    is_up: bool
    limit: int | None  # seconds; None for no limit
    nodes: int
    idle: int
    cores: str  # of a node; `8+` if some nodes have more
    memory: str  # MiB of a node
    gres: str
    hosts: str = ""  # the nodes' names, as `n[1-3]`
    what: str = "partition"  # partition or queue

    def to_json(self) -> dict[str, Any]:
        """Return the partition as JSON types."""
        return asdict(self)


def least(numbers: Iterable[int]) -> str:
    """Return the lowest number, with `+` if there are higher numbers; "" without a number."""
    known = sorted(set(numbers))
    return f"{known[0]}{'+' if len(known) > 1 else ''}" if known else ""
