"""orch doctor --bench: real ranks all-reduce, and the figures of the last time stand beside the new ones."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.operations.bandwidth import Figure, figures_of, in_words
from orchestrator.training.bandwidth import line_rate

from .conftest import Orch


def test_bandwidth_is_measured_inside_nodes_and_between_them(orch: Orch) -> None:
    kept = orch.home / "bandwidth" / "local-2x2.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"between nodes": 2e9}))
    done = orch("doctor", "-p", "local-2x2", "--bench", "--json")
    assert done.code == 0, done.err
    figures = {each["where"].partition(" (")[0]: each for each in done.json if "where" in each}
    assert list(figures) == ["node 0", "node 1", "between nodes"]
    assert all(each["now"] > 0 for each in figures.values())
    assert [each["before"] for each in figures.values()] == [None, None, 2e9]
    assert json.loads(kept.read_text()) == {name: each["now"] for name, each in figures.items()}
    assert list((orch.home / "runs").iterdir()) == []


def test_figures_stand_beside_the_networks_rate_and_the_last_ones(tmp_path: Path) -> None:
    nodes = [{"node": 0, "host": "n1", "line": 50e9, "inside": 300e9}, {"node": 1, "host": "n2", "line": 25e9}]
    found = figures_of({"nodes": nodes, "between": 20e9}, {"node 0": 310e9})
    assert found == [Figure("node 0 (n1)", 300e9, before=310e9), Figure("between nodes", 20e9, 25e9)]
    assert [in_words(each) for each in found] == [
        "all-reduce, node 0 (n1): 300.00 GB/s; last time 310.00",
        "all-reduce, between nodes: 20.00 GB/s of 25.00 GB/s that the network gives",
    ]
    for path, text in {
        "net/eth0/speed": "10000", "net/eth0/operstate": "up", "net/eth1/speed": "100000", "net/eth1/operstate": "down",
        "net/lo/operstate": "unknown", "ib/mlx5_0/ports/1/state": "4: ACTIVE",
        "ib/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
    }.items():  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert line_rate(str(tmp_path / "net"), str(tmp_path / "none")) == 1.25e9
    assert line_rate(str(tmp_path / "net"), str(tmp_path / "ib")) == 50e9
    assert line_rate(str(tmp_path / "none"), str(tmp_path / "none")) is None
