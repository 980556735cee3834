"""An order to profile some steps: what a node's ranks are asked, and what the files of their answers are called."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass

from orchestrator.protocol.json_text import parse_json

MOST_STEPS = 1000


@dataclass(frozen=True)
class Order:
    """Which order this is, and how many steps it asks for."""

    number: str
    steps: int

    def to_bytes(self) -> bytes:
        """Return the order as it lies in its file."""
        return json.dumps({"number": self.number, "steps": self.steps}).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Order:
        """Return the order that `to_bytes` gave; ValueError where it is none."""
        found = parse_json(data)
        if not isinstance(found, dict):
            raise ValueError("not an order")
        number, steps = found.get("number"), found.get("steps")
        if not (isinstance(number, str) and re.fullmatch(r"[0-9a-f]{16}", number)):
            raise ValueError("an order without a number")
        if not (isinstance(steps, int) and 0 < steps <= MOST_STEPS):
            raise ValueError("an order without steps")
        return Order(number, steps)


@dataclass(frozen=True)
class Parts:
    """The names of what one rank records; the trace comes last."""

    rank: int
    trace: str
    memory: str

    def named(self) -> tuple[tuple[str, str], ...]:
        """Return what each is called at home, and on the node."""
        return ((f"rank_{self.rank}.trace.json.gz", self.trace), (f"rank_{self.rank}.memory.pickle", self.memory))


def order_file(attempt_dir: str) -> str:
    """Return where a node's ranks look for an order."""
    return os.path.join(attempt_dir, "profile_order.json")


def parts_of(order: Order, rank: int) -> Parts:
    """Return the names of what a rank records for an order, in its attempt's folder."""
    return Parts(rank, f"profile_{order.number}_{rank}.trace.json.gz", f"profile_{order.number}_{rank}.memory.pickle")
