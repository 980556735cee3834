"""Curves thinned and smoothed, and heat maps: nothing that matters is lost on the way to a screen."""

from __future__ import annotations

import json
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol.metric import Better
from orchestrator.protocol.samples import RankSample, Sample
from orchestrator.runs.files.metrics import Series, Value, names_of_series, series
from orchestrator.runs.files.samples import NodeSamples
from orchestrator.runs.store import RunDir
from orchestrator.views.curves import Axis, curve_of, epochs_at, smoothed, thinned, trend_of
from orchestrator.views.heat import Span, span_map
from orchestrator.views.step_times import Histogram, StepTimes, histogram_of, step_spans

values = st.floats(-1e6, 1e6)
points = st.lists(values, max_size=300).map(lambda ys: [(float(x), y) for x, y in enumerate(ys)])


@given(points, st.integers(4, 60))
def test_thinned_points_keep_the_ends_and_the_spikes_and_their_order(given_points: list, most: int) -> None:
    kept = thinned(given_points, most, itemgetter(1))
    assert len(kept) <= max(most, 4)
    assert set(kept) <= set(given_points)
    assert [x for x, _ in kept] == sorted({x for x, _ in kept})
    if given_points:
        assert (kept[0], kept[-1]) == (given_points[0], given_points[-1])
        assert max(y for _, y in kept) == max(y for _, y in given_points)
        assert min(y for _, y in kept) == min(y for _, y in given_points)


@pytest.mark.parametrize(
    ("ys", "means", "steps", "change"),
    [
        ([4.0, 3.0, 2.0, 1.0], (4.0, 3.0, 2.0, 1.0), 1, -0.5),
        ([-2.0, -2.0, -2.0, -1.0], (-2.0, -2.0, -2.0, -1.0), 1, 0.5),  # it rises although it is negative
        ([1.0, 1.0, 0.0, 5.0], (1.0, 1.0, 0.0, 5.0), 1, None),
        ([8.0] * 80 + [4.0] * 10 + [2.0] * 10, None, 10, -0.5),
    ],
)
def test_a_trend_compares_the_last_tenth_with_the_one_before(
    ys: list[float], means: tuple[float, ...] | None, steps: float, change: float | None
) -> None:
    found = trend_of("loss", Better.LOWER, [Value(float(x), None, y) for x, y in enumerate(ys)])
    assert found is not None
    assert (found.steps, found.change) == (steps, change)
    assert found.means == means if means else (len(found.means), found.means[-1]) == (40, 2.0)


def test_too_few_values_have_no_trend() -> None:
    assert trend_of("loss", Better.LOWER, [Value(float(x), None, 1.0) for x in range(3)]) is None


@given(st.lists(values, max_size=300), st.floats(0, 0.99))
def test_a_smoothed_curve_stays_within_the_values_so_far(ys: list, weight: float) -> None:
    found = list(smoothed(ys, weight))
    assert len(found) == len(ys)
    for number, y in enumerate(found):
        slack = 1e-6 * max(1.0, *map(abs, ys))
        assert min(ys[: number + 1]) - slack <= y <= max(ys[: number + 1]) + slack


def test_smoothing_is_a_moving_average_without_a_bias_at_the_beginning() -> None:
    assert list(smoothed([4.0, 8.0], 0.0)) == [4.0, 8.0]
    assert list(smoothed([4.0, 8.0], 0.5)) == [4.0, (0.25 * 4 + 0.5 * 8) / 0.75]


def test_a_curve_by_time_begins_at_nought_and_its_facts_are_of_all_values() -> None:
    told = [Value(step, 100.0 + 2 * step, 10.0 - step) for step in range(8)]
    curve = curve_of("r", told, smoothing=0.9, most=4)
    assert curve is not None
    assert [x for x, _ in curve.points(Axis.TIME)] == [0.0, 2.0, 12.0, 14.0]
    assert [x for x, _ in curve.points(Axis.CLOCK)] == [100.0, 102.0, 112.0, 114.0]
    assert [x for x, _ in curve.points(Axis.STEP)] == [0.0, 1.0, 6.0, 7.0]
    assert (curve.count, curve.last, curve.lowest, curve.highest) == (8, 3.0, 3.0, 10.0)
    assert curve_of("r", []) is None


def test_a_smoothed_curve_keeps_its_values_as_they_were_written() -> None:
    told = [Value(step, None, float(step % 2)) for step in range(6)]
    plain, soft = curve_of("r", told), curve_of("r", told, smoothing=0.5)
    assert plain is not None
    assert soft is not None
    assert (plain.smooth, plain.points(Axis.STEP)[1]) == ((), (1.0, 1.0))
    assert soft.values == plain.values
    assert soft.points(Axis.STEP) == tuple(zip(soft.steps, smoothed(soft.values, 0.5), strict=True))
    assert (plain.seconds, plain.points(Axis.TIME), plain.points(Axis.EPOCH)) == ((), (), ())


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([], []),
        ([(0, 0), (1, 0), (2, 1), (3, 1)], [0.0, 0.5, 1.0, 1.5]),  # whole epochs are spread over their steps
        ([(0, 0), (3, 1)], [0.0, 1 / 3, 2 / 3, 1.0]),
        ([(0, 2), (1, 2), (2, 2), (3, 2)], [2.0, 2.25, 2.5, 2.75]),  # one that goes on
        ([(0, 0.1), (2, 0.5)], [0.1, 0.3, 0.5, 0.5]),  # the program counts parts itself
        ([(1, 3)], [3.0, 3.0, 4.0, 4.0]),
    ],
)
def test_each_step_has_its_epoch(told: list[tuple[int, float]], found: list[float]) -> None:
    values_told = [Value(float(step), None, float(epoch)) for step, epoch in told]
    assert epochs_at([0, 1, 2, 3], values_told) == pytest.approx(found)


def test_a_restart_may_take_time_and_epochs_back_but_not_the_steps() -> None:
    told = [Value(0, 10.0, 4.0), Value(1, 30.0, 3.0), Value(2, 20.0, 2.0)]
    curve = curve_of("r", told, [Value(0, 1.0, 0.0), Value(2, 1.0, 1.0)])
    assert curve is not None
    assert curve.points(Axis.TIME) == ((0.0, 4.0), (10.0, 2.0), (20.0, 3.0))
    assert curve.epochs == (0.0, 0.5, 1.0)


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
    assert found.names_of_kinds() == {"eval.loss"}
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
        Span(0.0, 2.0, {0: 0.5}, True), Span(2.0, 4.0, {0: 0.1}),
        Span(1.0, 6.0, {1: 5.0}, True), Span(4.0, 6.0, {0: 0.1}),
    ]  # fmt: skip
    found = span_map("step time", "s", list(step_spans(nodes)), columns=6)
    assert [row.values for row in found.rows] == [(0.5, 0.5, 0.1, 0.1, 0.1, 0.1), (None, 5.0, 5.0, 5.0, 5.0, 5.0)]


def attempt(number: int, first: float, *seconds: float, since: float = 0.0, step: int = 0) -> list[Sample]:
    """Samples of one rank in an attempt, each of the seconds that its steps took."""
    return [
        Sample(time=since + 10.0 * (at + 1), seconds=10.0, attempt=number,
               ranks=(RankSample(0, step=step + 10 * at + 1, step_seconds=each),))
        for at, each in enumerate((first, *seconds))
    ]  # fmt: skip


def test_the_first_steps_of_each_attempt_are_not_in_the_scale_of_the_map() -> None:
    samples = attempt(0, 8.0, 1.0, 1.2) + attempt(1, 6.0, 1.1, since=30.0)
    found = span_map("step time", "s", list(step_spans([NodeSamples(0, tuple(samples))])), columns=5)
    assert found.rows[0].values == (8.0, 1.0, 1.2, 6.0, 1.1)
    assert (found.startup, found.low, found.high, found.end) == ((0, 3), 1.0, 1.2, 50.0)
    alone = span_map("step time", "s", list(step_spans([NodeSamples(0, tuple(samples[:1]))])), columns=2)
    assert (alone.startup, alone.high) == ((), 8.0)  # while nothing else is known, they are shown


def test_the_oldest_sample_that_is_kept_is_no_start() -> None:
    samples = attempt(0, 1.0, 1.0, step=5000)
    assert [span.is_startup for span in step_spans([NodeSamples(0, tuple(samples))])] == [False, False]


def test_one_slow_cell_of_many_does_not_fill_the_scale() -> None:
    spans = [Span(at, at + 1.0, {0: 100.0 if at == 50 else 1.0 + at / 1000}) for at in range(200)]
    found = span_map("step time", "s", spans, columns=200)
    assert found.high == 100.0
    assert found.scale[1] < 2.0


def test_a_histogram_counts_steps_without_the_first_ones() -> None:
    samples = attempt(0, 9.0, 1.0, 2.0, 2.0)
    found = histogram_of([NodeSamples(0, tuple(samples))], bins=4)
    assert (found.low, found.high, found.median) == (1.0, 2.0, 1.0)
    assert found.counts == (10.0, 0.0, 0.0, 10.0)
    assert histogram_of([]) == Histogram()
    same = histogram_of([NodeSamples(0, tuple(attempt(0, 9.0, 1.0, 1.0)))], bins=4)
    assert sum(same.counts) == 20.0


def test_a_step_that_no_clock_can_have_measured_does_not_stretch_the_map() -> None:
    ranks = (RankSample(0, step_seconds=1e9),)
    nodes = [NodeSamples(0, (Sample(time=1e9, seconds=2.0), Sample(time=1e9 + 2, seconds=2.0, ranks=ranks)))]
    assert [(span.begin, span.end) for span in step_spans(nodes)] == [(1e9 - 2, 1e9 + 2)]
