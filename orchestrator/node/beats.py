"""Reads the beat files of a node's ranks, and tells each stall twice: at half of its limit and at the whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.node.watch import Stall, Watch

DEFAULT_LIMITS = {"train": 60.0, "medians": 10.0, "other": 1800.0}


class BeatReader:
    """The beats of one attempt's ranks on this node."""

    def __init__(self, hang: Mapping[str, Any]) -> None:
        limits = {name: float(hang.get(name, value)) for name, value in DEFAULT_LIMITS.items()}
        self.is_off = hang.get("action", "off") == "off"
        self.watch = Watch(limits["train"], limits["medians"], limits["other"])
        self.told: set[tuple[int, int, str, bool]] = set()

    def new_stalls(self, folder: str, ranks: Iterable[int], now: float) -> list[Stall]:
        """The stalls that have not been told yet; `folder` is the attempt's."""
        if self.is_off:
            return []
        stalls = self.watch.look(
            {rank: read_beat(f"{folder}/beat_{rank}") or output(folder, rank) for rank in ranks}, now
        )
        new = [stall for stall in stalls if (stall.rank, stall.step, stall.phase, stall.is_full) not in self.told]
        self.told.update((stall.rank, stall.step, stall.phase, stall.is_full) for stall in new)
        return new


def output(folder: str, rank: int) -> dict[str, Any] | None:
    """What stands in for the beat of a program that has none: how much it has said."""
    try:
        return {"step": os.stat(f"{folder}/rank_{rank}.log").st_size, "phase": "output", "time": 0.0}
    except OSError:
        return None


def read_beat(path: str) -> dict[str, Any] | None:
    """The last beat of a rank; None when it has none, or it is being written this instant."""
    try:
        with open(path, encoding="utf-8") as file:
            beat = json.load(file)
    except (OSError, ValueError):
        return None
    return beat if isinstance(beat, dict) else None
