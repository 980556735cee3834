"""Samples as lines of JSON, and thinned."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.protocol.samples import GpuSample, RankSample, Sample, lasting, merged, seconds_per_line

RATE = st.floats(0, 1e12)
RANKS = st.builds(
    RankSample, st.integers(0, 3), RATE, RATE, RATE, RATE, st.sampled_from(["train", "save"]), st.integers(-1, 99),
    st.none() | st.floats(0, 1),
)  # fmt: skip
GPUS = st.builds(GpuSample, st.integers(0, 3), st.none() | st.floats(0, 100), power=st.none() | st.floats(0, 1000))


def of_each(parts: st.SearchStrategy[Any], key: str) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(parts, max_size=4, unique_by=lambda part: getattr(part, key)).map(
        lambda found: tuple(sorted(found, key=lambda part: int(getattr(part, key))))
    )


SAMPLES = st.builds(
    Sample, RATE, st.floats(0.1, 100), cpu=RATE, memory=RATE, read=RATE, sent=RATE, joules=st.none() | RATE,
    ranks=of_each(RANKS, "rank"), gpus=of_each(GPUS, "index"),
)  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def roughly(value: float) -> Any:
    return pytest.approx(value, rel=1e-6, abs=1e-3)


@given(st.lists(SAMPLES, min_size=1, max_size=6))
def test_thinning_loses_no_time_no_work_and_no_byte(samples: list[Sample]) -> None:
    whole = merged(samples)
    assert whole.time == samples[-1].time
    assert whole.seconds == roughly(sum(each.seconds for each in samples))
    for name in ("cpu", "read", "sent"):
        assert getattr(whole, name) * whole.seconds == roughly(sum(getattr(s, name) * s.seconds for s in samples))
    assert whole.memory == max(each.memory for each in samples)
    of_ranks = sum(rank.cpu * sample.seconds for sample in samples for rank in sample.ranks)
    assert sum(rank.cpu for rank in whole.ranks) * whole.seconds == roughly(of_ranks)
    assert {rank.rank for rank in whole.ranks} == {rank.rank for sample in samples for rank in sample.ranks}


@given(SAMPLES)
def test_a_sample_is_the_same_after_its_line(sample: Sample) -> None:
    again = Sample.from_json(json.loads(json.dumps(sample.to_json())))
    assert again.cpu == pytest.approx(sample.cpu, rel=1e-3, abs=1e-3)
    assert [rank.rank for rank in again.ranks] == [rank.rank for rank in sample.ranks]
    assert [rank.phase for rank in again.ranks] == [rank.phase for rank in sample.ranks]
    assert [gpu.use is None for gpu in again.gpus] == [gpu.use is None for gpu in sample.gpus]
    assert (again.joules is None) == (sample.joules is None)


@given(st.dictionaries(st.sampled_from(["time", "cpu", "cores", "ranks", "gpus", "joules"]), JUNK | st.lists(
    st.dictionaries(st.sampled_from(["rank", "cpu", "phase", "index", "use", "ecc", "throttled"]), JUNK))))  # fmt: skip
@example({"ranks": 0, "gpus": 1.5})
def test_whatever_a_line_holds_it_is_a_sample_of_finite_numbers(data: dict[str, Any]) -> None:
    sample = Sample.from_json(data)
    assert math.isfinite(sample.cpu)
    assert type(sample.cores) is int
    assert all(math.isfinite(rank.cpu) and isinstance(rank.phase, str) for rank in sample.ranks)
    merged([sample, sample])


def test_a_text_is_cut() -> None:
    sample = Sample.from_json({"ranks": [{"rank": 1, "phase": "x" * 1000}], "gpus": [{"index": 10**400}]})
    assert len(sample.ranks[0].phase) == 80
    assert sample.gpus[0].index == 0


def test_lines_cover_more_the_longer_a_run_lasts() -> None:
    assert [seconds_per_line(age) for age in (0, 299, 300, 3599, 3600, 1e9)] == [2, 2, 10, 10, 60, 60]


def test_how_long_something_lasts_in_words() -> None:
    assert [lasting(each) for each in (45.4, 119, 1200, 7200)] == ["45 s", "119 s", "20 min", "2 h"]
