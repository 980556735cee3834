"""Samples as lines of characters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.render.sparklines import ASCII, BLOCKS, View, in_columns, metrics_page, sparkline
from orchestrator.protocol.samples import GpuSample, RankSample, Sample
from orchestrator.runs.files.samples import NodeSamples

SAMPLES = tuple(
    Sample(
        time=100.0 + 2 * number, seconds=2.0, cpu=float(number % 4), cores=4, memory=50.0, memory_total=100.0,
        ranks=(RankSample(0, cpu=1.0, phase="train", step=10 * number), RankSample(1, cpu=0.0)),
        gpus=(GpuSample(0, use=97.0, power=312.4, throttled="\x1b[31mhot"),),
    )
    for number in range(20)
)  # fmt: skip


def test_a_value_has_the_block_of_its_share() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7, 8], 8) == BLOCKS + BLOCKS[-1]
    assert sparkline([None, 5], 10, blocks=ASCII) == " ="
    assert sparkline([3.0, float("nan")], 0) == BLOCKS[0] * 2


@given(
    st.lists(st.tuples(st.floats(0.5, 100), st.floats(0, 100)), min_size=1, max_size=30),
    st.integers(1, 60),
    st.floats(1, 1000),
)
def test_each_column_has_a_sample_where_one_covers_it(
    lengths: list[tuple[float, float]], columns: int, seconds: float
) -> None:
    now, samples = 0.0, []
    for length, cpu in lengths:
        now += length
        samples.append(Sample(time=now, seconds=length, cpu=cpu))
    found = in_columns(samples, columns, seconds)
    assert len(found) == columns
    assert found[-1] is not None
    assert found[-1].time == now
    covered = [column for column in range(columns) if now - seconds + (column + 1) * seconds / columns > 1e-6]
    assert all(found[column] is not None for column in covered)


def test_a_page_has_a_line_for_the_node_its_gpu_and_each_rank() -> None:
    lines = metrics_page([NodeSamples(1, SAMPLES)], {1: "n2"}, View(40.0, 80, ASCII)).splitlines()
    assert lines[2] == "node 1 (n2)"
    assert [line.split()[0] for line in lines[3:]] == ["CPU", "memory", "disk", "network", "GPU", "rank", "rank"]
    assert lines[3].endswith("3.0 of 4 cores")
    assert lines[4].endswith("50 % of 100 B")
    assert "97 %, 312 W" in lines[7]
    assert "100 % CPU, 0 B, train, 200 ms a step" in lines[8]
    assert all(len(line) <= 80 and line.isascii() and line.isprintable() for line in lines)


def test_ranks_that_have_ended_are_shown_as_they_were() -> None:
    ended = Sample(time=140.0, seconds=2.0, cores=4)
    lines = metrics_page([NodeSamples(0, (*SAMPLES, ended))], {}, View(42.0)).splitlines()
    assert [line.split()[:2] for line in lines[-2:]] == [["rank", "0"], ["rank", "1"]]
    assert not any(line.startswith("  rank") for line in metrics_page(
        [NodeSamples(0, SAMPLES)], {}, View(42.0, ranks=False)).splitlines())  # fmt: skip
