"""Which rank is the slowest, by how much and why, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.protocol.samples import GpuSample, RankSample, Sample
from orchestrator.runs.files.samples import NodeSamples
from orchestrator.views.pace import pace_of

HOSTS = {0: "n1", 1: "n2"}


def node(number: int, *ranks: dict[str, Any], gpus: tuple[GpuSample, ...] = (), cpu: float = 2.0) -> NodeSamples:
    """A node whose first sample covers the slow first steps, and whose next three are alike."""
    first = 2 * number

    def sample(at: int) -> Sample:
        told = tuple(
            RankSample(
                first + place, phase="train", step=10 * at, **{**values, **({"step_seconds": 9.0} if at == 0 else {})}
            )
            for place, values in enumerate(ranks)
        )
        return Sample(time=100.0 + 2 * at, seconds=2.0, cpu=cpu, cores=8, ranks=told, gpus=gpus)

    return NodeSamples(number, tuple(map(sample, range(4))))


def usual(**values: Any) -> dict[str, Any]:
    return {"step_seconds": 0.2, "waited": 0.02, **values}


def test_the_slowest_rank_is_named_with_its_host_and_reason() -> None:
    found = pace_of([node(0, usual(), usual()), node(1, usual(), usual(step_seconds=0.28, waited=0.6))], HOSTS)
    assert found is not None
    assert found.sentence == (
        "Rank 3 on n2 is slowest: a step takes 280 ms, +40 % over the median (200 ms); "
        "it waits for its loader 60 % of the time."
    )
    assert (found.rank, found.node, round(found.slower, 6)) == (3, 1, 0.4)


def test_a_slow_rank_without_a_reason_is_named_too() -> None:
    found = pace_of([node(0, usual(), usual()), node(1, usual(), usual(step_seconds=2.0))], {})
    assert found is not None
    assert found.sentence == (
        "Rank 3 is slowest: a step takes 2.0 s, +900 % over the median (200 ms); no measurement shows why."
    )


def test_where_ranks_wait_for_each_other_the_one_that_holds_them_up_is_named() -> None:
    found = pace_of([node(0, usual(), usual()), node(1, usual(), usual(waited=0.62))], HOSTS)
    assert found is not None
    assert found.sentence == (
        "All 4 ranks keep pace: a step takes 200 ms. Rank 3 on n2 waits for its loader 62 % of the time, "
        "so the others may wait for it."
    )
    assert (found.rank, found.slower) == (3, 0.0)


def test_ranks_that_are_alike_keep_pace() -> None:
    found = pace_of([node(0, usual(), usual(step_seconds=0.21))], HOSTS)
    assert found is not None
    assert (found.sentence, found.rank) == ("Both ranks keep pace: a step takes 200 ms.", None)
    waits = pace_of([node(0, usual(waited=0.5), usual(waited=0.5))], HOSTS)
    assert waits is not None
    assert waits.rank is None  # all wait alike


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (
            [node(0, usual(), usual(), gpus=(GpuSample(0, 90.0), GpuSample(1, 90.0, throttled="thermal")))],
            "has a GPU that is held back (thermal)",
        ),
        (
            [
                node(
                    0,
                    usual(),
                    usual(),
                    gpus=(GpuSample(0, 90.0, throttled="heat"), GpuSample(1, 90.0, throttled="heat")),
                )
            ],
            "",
        ),
        ([node(0, usual(), usual(read=float(64 << 20)))], "reads 64.0 MiB/s from disk"),
        ([node(0, usual(), usual()), node(1, usual(), usual(), cpu=7.9)], "is on a node whose CPU is fully used"),
        (
            [node(0, usual(), usual(), gpus=(GpuSample(0, 98.0), GpuSample(1, 30.0)))],
            "uses its GPU 30 % of the time, the others 98 %",
        ),
    ],
)
def test_the_reason_is_what_sets_a_rank_apart(nodes: list[NodeSamples], why: str) -> None:
    found = pace_of(nodes, HOSTS)
    assert found is not None
    assert found.why == why


def test_one_rank_alone_has_a_pace_and_none_without_step_times() -> None:
    alone = pace_of([node(0, usual(waited=0.7))], HOSTS)
    assert alone is not None
    assert alone.sentence == "A step takes 200 ms; the rank waits for its loader 70 % of the time."
    assert pace_of([node(0, {"waited": 0.5, "step_seconds": None})][:0], HOSTS) is None
    assert pace_of([NodeSamples(0, (Sample(time=1.0, seconds=1.0),))], HOSTS) is None


def test_only_the_newest_attempt_counts() -> None:
    one = node(0, usual(), usual(step_seconds=5.0)).samples
    again = tuple(
        Sample(time=200.0 + at, seconds=2.0, attempt=1, ranks=(RankSample(0, step_seconds=0.2),)) for at in range(3)
    )
    found = pace_of([NodeSamples(0, one + again)], HOSTS)
    assert found is not None
    assert found.sentence == "A step takes 200 ms."
