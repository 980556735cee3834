"""Curves thinned and smoothed, and heat maps: nothing that matters is lost on the way to a screen."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol.samples import RankSample, Sample
from orchestrator.runs.files.metrics import Series, Value, names_of_series, series
from orchestrator.runs.files.samples import NodeSamples
from orchestrator.runs.store import RunDir
from orchestrator.views.curves import Axis, curve_of, smoothed, thinned
from orchestrator.views.heat import Span, span_map
from orchestrator.views.step_times import StepTimes, step_spans

values = st.floats(-1e6, 1e6)
points = st.lists(values, max_size=300).map(lambda ys: [(float(x), y) for x, y in enumerate(ys)])


@given(points, st.integers(4, 60))
def test_thinned_points_keep_the_ends_and_the_spikes_and_their_order(given_points: list, most: int) -> None:
    kept = thinned(given_points, most)
    assert len(kept) <= max(most, 4)
    assert set(kept) <= set(given_points)
    assert [x for x, _ in kept] == sorted({x for x, _ in kept})
    if given_points:
        assert (kept[0], kept[-1]) == (given_points[0], given_points[-1])
        assert max(y for _, y in kept) == max(y for _, y in given_points)
        assert min(y for _, y in kept) == min(y for _, y in given_points)


@given(points, st.floats(0, 0.99))
def test_a_smoothed_curve_stays_within_the_values_so_far(given_points: list, weight: float) -> None:
    ys = [y for _, y in given_points]
    for number, (x, y) in enumerate(smoothed(given_points, weight)):
        slack = 1e-6 * max(1.0, *map(abs, ys))
        assert x == given_points[number][0]
        assert min(ys[: number + 1]) - slack <= y <= max(ys[: number + 1]) + slack


def test_smoothing_is_a_moving_average_without_a_bias_at_the_beginning() -> None:
    assert list(smoothed([(0, 4.0), (1, 8.0)], 0.0)) == [(0, 4.0), (1, 8.0)]
    assert list(smoothed([(0, 4.0), (1, 8.0)], 0.5)) == [(0, 4.0), (1, (0.25 * 4 + 0.5 * 8) / 0.75)]


def test_a_curve_by_time_begins_at_nought_and_its_facts_are_of_all_values() -> None:
    told = [Value(step, 100.0 + 2 * step, 10.0 - step) for step in range(8)]
    curve = curve_of("r", told, Axis.TIME, smoothing=0.9, most=4)
    assert curve is not None
    assert [x for x, _ in curve.points] == [0.0, 2.0, 12.0, 14.0]
    assert (curve.count, curve.last, curve.lowest, curve.highest) == (8, 3.0, 3.0, 10.0)
    assert curve_of("r", []) is None


def test_a_second_look_at_metrics_reads_only_what_is_new(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    file = tmp_path / "metrics.jsonl"

    def line(step: int, loss: float | None, kind: str = "train") -> str:
        return json.dumps({"kind": kind, "step": step, "loss": loss, "time": 1.0 * step, "attempt": 0}) + "\n"

    file.write_text(line(1, 4.0) + line(2, None) + line(2, 9.0, "eval") + "[]\nnot json\n" + line(3, 2.0)[:-1])
    found = Series(run)
    found.look()
    assert [value.step for value in found.values("loss")] == [1, 3]  # the last line has no end yet
    assert found.values("eval.loss") == [Value(2.0, 2.0, 9.0)]
    file.write_text(file.read_text().replace("4.0", "7.0") + "\n" + line(3, 1.0) + line(4, 0.5))
    found.look()
    assert [(value.step, value.value) for value in found.values("loss")] == [(1, 4.0), (3, 1.0), (4, 0.5)]
    assert series(run, "loss") == [(1, 7.0), (3, 1.0), (4, 0.5)]  # read as a whole
    assert names_of_series(run) == {"loss"}
    file.write_text(line(9, 9.0))  # begun anew
    found.look()
    assert found.values("loss") == [Value(9.0, 9.0, 9.0)]
    file.unlink()
    found.look()
    Series(run).look()


def test_a_map_of_nothing_is_empty() -> None:
    assert span_map("step time", "s", [], columns=9).rows == ()


def test_step_times_follow_from_two_looks_and_begin_anew_with_an_attempt() -> None:
    looks = StepTimes()
    looks.look(0, {0: {"step": 10, "time": 100.0}, 1: {"step": 10, "time": 7.0}, 2: {"phase": "start"}})
    assert looks.newest == {}
    looks.look(0, {0: {"step": 20, "time": 101.0}, 1: {"step": 10, "time": 7.0}})
    assert looks.newest == {0: 0.1}
    looks.look(0, {0: {"step": 30, "time": 102.0}, 1: {"step": 12, "time": 10.0}})
    assert looks.newest == {0: 0.1, 1: 1.5}
    looks.look(1, {0: {"step": 12, "time": 110.0}})
    assert looks.newest == {}


def test_the_map_of_step_times_covers_what_samples_tell() -> None:
    def sample(at: float, *seconds: float | None) -> Sample:
        ranks = tuple(RankSample(rank, step=1, step_seconds=each) for rank, each in enumerate(seconds))
        return Sample(time=at, seconds=2.0, ranks=ranks)

    nodes = [NodeSamples(0, (sample(2.0, 0.5, None), sample(4.0, 0.1, None), sample(6.0, 0.1, 5.0)))]
    assert list(step_spans(nodes)) == [
        Span(0.0, 2.0, {0: 0.5}), Span(2.0, 4.0, {0: 0.1}), Span(4.0, 6.0, {0: 0.1}), Span(1.0, 6.0, {1: 5.0}),
    ]  # fmt: skip
    found = span_map("step time", "s", list(step_spans(nodes)), columns=6)
    assert [row.values for row in found.rows] == [(0.5, 0.5, 0.1, 0.1, 0.1, 0.1), (None, 5.0, 5.0, 5.0, 5.0, 5.0)]
    assert (found.low, found.high) == (0.1, 5.0)


def test_a_step_that_no_clock_can_have_measured_does_not_stretch_the_map() -> None:
    ranks = (RankSample(0, step_seconds=1e9),)
    nodes = [NodeSamples(0, (Sample(time=1e9, seconds=2.0), Sample(time=1e9 + 2, seconds=2.0, ranks=ranks)))]
    assert [(span.begin, span.end) for span in step_spans(nodes)] == [(1e9 - 2, 1e9 + 2)]
