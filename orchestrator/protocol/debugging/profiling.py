"""A request to profile some training steps, and the names of the files with the results."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass

from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.typed import read

MOST_STEPS = 1000


@dataclass(frozen=True)
class Order:
    """A request to profile a run: its number, which identifies it, and how many steps to profile."""

    number: str
    steps: int

    def to_bytes(self) -> bytes:
        """Return the content of the request's file."""
        return json.dumps({"number": self.number, "steps": self.steps}).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Order:
        """Parse an order that `to_bytes` wrote. Raises ValueError if it is not valid."""
        order = read(Order, parse_json(data))
        if not re.fullmatch(r"[0-9a-f]{16}", order.number) or not 0 < order.steps <= MOST_STEPS:
            raise ValueError("the profiling request has no valid number, or no valid number of steps")
        return order


@dataclass(frozen=True)
class Parts:
    """The names of the files that one rank records for a request. The trace is written last."""

    rank: int
    trace: str
    memory: str

    def named(self) -> tuple[tuple[str, str], ...]:
        """Return (name on the submitting machine, name on the node) of each recording."""
        return ((f"rank_{self.rank}.trace.json.gz", self.trace), (f"rank_{self.rank}.memory.pickle", self.memory))


def order_file(attempt_dir: str) -> str:
    """Return the path of the file in which a node's ranks look for a profiling request."""
    return os.path.join(attempt_dir, "profile_order.json")


def parts_of(order: Order, rank: int) -> Parts:
    """Return the names of the files that a rank records for a request. The files are in the attempt's folder."""
    return Parts(rank, f"profile_{order.number}_{rank}.trace.json.gz", f"profile_{order.number}_{rank}.memory.pickle")
