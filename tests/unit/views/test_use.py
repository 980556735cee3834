"""How busy a run is: a map whose cells are means over time and the worst of neighbours, and the newest numbers."""

from __future__ import annotations

import json

import pytest

from orchestrator.protocol.samples import GpuSample, RankSample, Sample
from orchestrator.runs.files.samples import NodeSamples
from orchestrator.views.json_types import to_json
from orchestrator.views.use import Totals, totals_of, use_view, uses_of_ranks


def node(number: int, *cpus: tuple[float, float], gpus: tuple[float | None, ...] = ()) -> NodeSamples:
    """Two ranks on a node; each pair is what they have computed in 10 s."""
    return NodeSamples(number, tuple(
        Sample(
            time=110.0 + 10 * at, seconds=10.0, cpu=2.0, cores=8, memory_total=1000.0,
            ranks=tuple(RankSample(2 * number + rank, cpu=cpu, memory=250.0, waited=0.5 if rank else None)
                        for rank, cpu in enumerate(pair)),
            gpus=tuple(GpuSample(index, use=use) for index, use in enumerate(gpus)),
        ) for at, pair in enumerate(cpus)
    ))  # fmt: skip


NODES = (node(0, (1.0, 0.5), (0.0, 0.5)), node(1, (0.2, 1.0), (1.0, 1.0), gpus=(90.0, None)))


def test_a_map_has_the_mean_of_each_rank_over_time() -> None:
    found = use_view(NODES, "cpu", columns=2)
    assert [(row.first, row.values) for row in found.map.rows] == [
        (0, (100.0, 0.0)), (1, (50.0, 50.0)), (2, (20.0, 100.0)), (3, (100.0, 100.0)),
    ]  # fmt: skip
    assert (found.map.times, found.map.of, found.map.unit) == ((100.0, 110.0), "rank", "%")
    joined = use_view(NODES, "cpu", columns=1)
    assert [row.values[0] for row in joined.map.rows] == pytest.approx([50.0, 50.0, 60.0, 100.0])
    wide = use_view(NODES, "cpu", columns=8)  # a sample covers all of its time
    assert wide.map.rows[0].values == pytest.approx((100.0,) * 4 + (0.0,) * 4)


def test_ranks_that_share_a_row_show_who_idles_and_who_waits() -> None:
    assert use_view(NODES, "cpu", columns=1, rows=2).map.rows[0].values == pytest.approx((50.0,))
    waits = use_view(NODES, "waits", columns=1, rows=1).map
    assert [(row.first, row.last, row.values) for row in waits.rows] == [(1, 3, (50.0,))]


def test_what_a_run_has_can_be_asked_for_and_gpus_are_numbered_through_it() -> None:
    found = use_view(NODES, columns=2)
    assert list(found.measures) == [
        "gpu", "cpu", "memory", "waits", "node_cpu", "node_memory", "read", "written", "received", "sent",
    ]  # fmt: skip
    assert (found.measure, found.map.of) == ("gpu", "GPU")
    assert [(row.first, row.values) for row in found.map.rows] == [(0, (90.0, 90.0))]
    assert use_view(NODES, "power", columns=2).measure == "gpu"
    of_nodes = use_view(NODES, "node_cpu", columns=1).map
    assert [(row.first, row.values) for row in of_nodes.rows] == [(0, (25.0,)), (1, (25.0,))]
    assert (of_nodes.of, use_view(NODES, "sent", columns=1).map.unit) == ("node", "B/s")
    assert use_view(NODES[:1], "gpu", columns=2).measure == "cpu"
    more = (node(0, (0.0, 0.0), gpus=(1.0, 2.0)), node(1, (0.0, 0.0), gpus=(3.0, 4.0)))
    assert [row.values[0] for row in use_view(more, "gpu", columns=1).map.rows] == [1.0, 2.0, 3.0, 4.0]


def test_the_newest_numbers_are_of_each_node_and_rank() -> None:
    found = use_view(NODES, columns=2)
    assert [(each.node, each.newest.time) for each in found.nodes] == [(0, 120.0), (1, 120.0)]
    uses = uses_of_ranks(NODES)
    assert uses[1] == {"cpu": 0.5, "waits": 0.5}
    assert uses[2] == {"cpu": 1.0, "gpu": 0.9}
    ended = NodeSamples(0, (*NODES[0].samples, Sample(time=130.0, seconds=10.0)))
    assert [rank.rank for rank in use_view([ended], columns=2).nodes[0].newest.ranks] == [0, 1]
    assert uses_of_ranks([ended]) == {}


def test_a_run_without_samples_has_none() -> None:
    found = use_view([], columns=2)
    assert (found.measure, found.map.rows, found.nodes) == ("", (), ())
    assert json.loads(json.dumps(to_json(use_view(NODES, columns=2)), allow_nan=False))["map"]["of"] == "GPU"


def test_the_totals_of_a_run_are_extremes_means_and_medians_of_all_nodes() -> None:
    seen = [
        Sample(ranks=(RankSample(0, memory=5.0, step_seconds=0.1), RankSample(1, memory=9.0, step_seconds=0.3)),
               gpus=(GpuSample(0, use=90.0, memory=70.0), GpuSample(1, use=30.0))),
        Sample(ranks=(RankSample(0, memory=7.0, step_seconds=0.2),), gpus=(GpuSample(0),)),
    ]  # fmt: skip
    nodes = [NodeSamples(number, (sample,)) for number, sample in enumerate(seen)]
    assert totals_of(nodes) == Totals(rank_memory=9.0, gpu_memory=70.0, gpu_use=60.0, step_seconds=0.2)
    assert totals_of([]) == Totals(None, None, None, None)
