"""The program `python -m orchestrator.training.bandwidth`, which measures all-reduce within each node and over all
nodes.

The result is the bus bandwidth as NCCL's tests define it, which can be compared with the rate of a link. In an
all-reduce of n ranks, 2(n-1)/n times the tensor's bytes pass each rank's link. The bus bandwidth is this number of
bytes divided by the time.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from orchestrator.training.distributed.devices import choose
from orchestrator.training.distributed.group import everyones, joined
from orchestrator.training.distributed.ranks import read_ranks
from orchestrator.training.errors import EXIT_USAGE, UserError
from orchestrator.training.options import read_places
from orchestrator.training.progress.report import Reporter

MIB = 1 << 20
SIZES = {"cuda": (256 * MIB, 20), "cpu": (16 * MIB, 5)}  # (bytes of the tensor, number of repetitions)
WARM_UPS = 2


def main() -> int:
    """Measure the bandwidths and return the exit code. Rank 0 writes them as the run's result."""
    try:
        places, ranks = read_places(), read_ranks()
        choice = choose(places.backend, ranks, places.device)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    if not choice.backend:
        print("error: an all-reduce needs several ranks, and this is a single process: start more", file=sys.stderr)
        return EXIT_USAGE
    report = Reporter(None, places.result, speaks=ranks.rank == 0, attempt=places.attempt)
    with joined(ranks, choice) as agreed:
        report.result(measure(agreed.device, os.environ.get("GROUP_RANK", "0")))
    return 0


def measure(device: torch.device, node: str) -> dict[str, Any]:
    """Return the bandwidths within each node and over all nodes, in bytes per second.

    If a node has only one rank, its bandwidth within the node is left out. If the run has only one node, the bandwidth
    over all nodes is None.
    """
    size, times = SIZES[device.type]
    nodes = everyones(node)
    members = {name: [rank for rank, each in enumerate(nodes) if each == name] for name in dict.fromkeys(nodes)}
    # new_group must be called for every group on every rank
    groups = {name: dist.new_group(ranks) for name, ranks in members.items()}
    own: dict[str, Any] = {"node": int(node), "host": os.uname().nodename, "line": line_rate()}
    if len(members[node]) > 1:
        own["inside"] = _bandwidth(device, size, times, groups[node], len(members[node]))
    results = everyones(own)
    between = _bandwidth(device, size, times, None, len(nodes)) if len(members) > 1 else None
    return {
        "device": device.type, "backend": str(dist.get_backend()), "bytes": size, "between": between,
        "nodes": [results[ranks[0]] for ranks in members.values()],
    }  # fmt: skip


def _bandwidth(device: torch.device, size: int, times: int, group: Any, ranks: int) -> float:
    tensor = torch.ones(size // 4, device=device)
    for _ in range(WARM_UPS):
        dist.all_reduce(tensor, group=group)
    _settle(device, group)
    begun = time.monotonic()
    for _ in range(times):
        dist.all_reduce(tensor, group=group)
    _settle(device, group)
    return 2 * (ranks - 1) / ranks * size * times / (time.monotonic() - begun)


def _settle(device: torch.device, group: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    dist.barrier(group)


def line_rate(networks: str = "/sys/class/net", adapters: str = "/sys/class/infiniband") -> float | None:
    """Return the bytes per second of this node's fastest network adapter, or None if no adapter reports a rate."""
    rates = [
        float(word) * 1e9 / 8
        for port in Path(adapters).glob("*/ports/*")
        if "ACTIVE" in _read(port / "state") and (word := _read(port / "rate").partition(" ")[0])
    ]
    speeds = [_read(each / "speed") for each in Path(networks).glob("*") if _read(each / "operstate") == "up"]
    rates += [int(speed) * 1e6 / 8 for speed in speeds if speed.isdigit()]
    return max(rates, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
