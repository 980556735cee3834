"""One rule says which way a metric is better, for runs and for checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import UsageError
from orchestrator.protocol.checkpoints.checkpoint_dir import CheckpointState
from orchestrator.protocol.metric import Better, JobMetric, better_of
from orchestrator.runs.files.checkpoints import Checkpoint, best
from orchestrator.runs.files.metrics import (
    Ranked,
    check_metric,
    metric_of_checkpoints,
    metric_of_job,
    metrics_of,
    ranked,
    series,
)
from orchestrator.runs.store import append_lines, create_run
from tests.unit.runs.metric_names import TABLE


def of(step: int, **metric: float) -> Checkpoint:
    return Checkpoint(Path(f"step_{step:08d}"), step, CheckpointState.COMMITTED, metric=metric)


@pytest.mark.parametrize(("name", "better"), TABLE)
def test_the_words_of_a_name_decide(name: str, better: str) -> None:
    assert better_of(name) is Better(better)
    chosen = best([of(1, **{name: 1.0}), of(2, **{name: 2.0}), of(3, **{name: 1.5})])
    assert chosen is not None
    assert chosen[0].step == (1 if better == "lower" else 2)


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("valLoss", "lower"), ("MSELoss", "lower"), ("evalWER", "lower"), ("valloss", "lower"), ("top5error", "lower"),
        ("seconds_per_step", "lower"), ("bits.per.byte", "lower"), ("mse2", "lower"), ("confidence_loss", "lower"),
        ("negative_log_likelihood", "lower"), ("false_positive_rate", "lower"),
        ("wer_confidence", "higher"), ("loss_f1", "higher"), ("neg_log_loss", "higher"),
        ("neg-mean-squared-error", "higher"), ("tokens_per_seconds", "higher"), ("mAP50", "higher"),
        ("mIoU", "higher"), ("F1", "higher"), ("ROUGE_L", "higher"), ("concert", "higher"), ("merit", "higher"),
        ("", "higher"), ("42", "higher"), ("步", "higher"),
    ],
)  # fmt: skip
def test_names_that_have_several_words(name: str, better: str) -> None:
    assert better_of(name) is Better(better)


@given(st.text())
def test_every_name_has_an_answer(name: str) -> None:
    assert better_of(name) in tuple(Better)


def test_the_job_wins_over_the_words_of_its_own_metric_alone() -> None:
    of_job = JobMetric("fidelity_loss", Better.HIGHER)
    assert better_of("fidelity_loss", of_job) is Better.HIGHER
    assert better_of("loss", of_job) is Better.LOWER
    assert better_of("wer", JobMetric("wer")) is Better.LOWER


def test_checkpoints_go_by_the_metric_of_the_job() -> None:
    found = [of(1, accuracy=0.9, chrf=0.5), of(2, accuracy=0.8, chrf=0.6), of(3, accuracy=0.7, chrf=0.4)]
    assert best(found) == (found[0], "accuracy 0.9 is the largest of 3")
    assert best(found, JobMetric("chrf")) == (found[1], "chrf 0.6 is the largest of 3")
    assert best(found, JobMetric("chrf", Better.LOWER)) == (found[2], "chrf 0.4 is the smallest of 3")
    assert best(found, JobMetric("wer")) == (found[0], "accuracy 0.9 is the largest of 3, as none has a metric 'wer'")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"job": {"metric": {"name": "wer", "better": "lower"}}}, JobMetric("wer", Better.LOWER)),
        ({"job": {"metric": {"name": "wer", "better": None}}}, JobMetric("wer")),
        ({"job": {"metric": {"name": "wer", "better": "best"}}}, JobMetric("wer")),
        ({"job": {"metric": None}}, None),
        ({"job": {"metric": {"name": 3}}}, None),
        ({"job": {"metric": "wer"}}, None),
        ({"job": []}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_metric_in_a_runs_record(record: dict[str, Any] | None, expected: JobMetric | None) -> None:
    assert metric_of_job(record) == expected


@pytest.mark.parametrize(
    ("job", "of_runs", "of_checkpoints"),
    [
        ({"metric": {"name": "wer"}}, JobMetric("wer"), JobMetric("wer")),
        ({"checkpoint": {"keep_best": "loss"}}, JobMetric("loss"), JobMetric("loss")),
        ({"metric": {"name": "wer"}, "checkpoint": {"keep_best": "loss"}}, JobMetric("wer"), JobMetric("loss")),
        (
            {"metric": {"name": "loss", "better": "higher"}, "checkpoint": {"keep_best": "loss"}},
            JobMetric("loss", Better.HIGHER), JobMetric("loss", Better.HIGHER),
        ),
        ({"checkpoint": {"keep_best": None}}, None, None),
        ({"checkpoint": "x"}, None, None),
    ],
)  # fmt: skip
def test_runs_are_judged_by_metric_and_checkpoints_by_keep_best(
    job: dict[str, Any], of_runs: JobMetric | None, of_checkpoints: JobMetric | None
) -> None:
    assert (metric_of_job({"job": job}), metric_of_checkpoints({"job": job})) == (of_runs, of_checkpoints)


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False)), st.sampled_from(Better))
def test_a_ranking_loses_nobody_and_is_in_order(values: list[float | None], better: Better) -> None:
    rows = [Ranked(str(index), "succeeded", {}, value) for index, value in enumerate(values)]
    found = ranked(rows, better=better)
    assert sorted(row.run_id for row in found) == sorted(row.run_id for row in rows)
    known = [row.value for row in found if row.value is not None]
    assert known == sorted(known, reverse=better is Better.HIGHER)
    assert [row.value for row in found[len(known) :]] == [None] * (len(values) - len(known))
    assert all((row.rank is None) == (row.value is None) for row in found)
    assert all(row.rank == 1 for row in found if known and row.value == known[0])


def test_a_number_that_is_longer_than_a_float_is_none(tmp_path: Path) -> None:
    run = create_run(tmp_path, "a-222222", {"kind": "local"})
    lines = [f'{{"step": 1, "loss": {10**400}, "accuracy": 0.5}}', f'{{"step": {10**400}, "loss": 1}}']
    append_lines(run.path / "metrics.jsonl", lines)
    assert series(run, "loss") == []
    assert metrics_of(run) == {"step": 1.0, "accuracy": 0.5, "loss": 1.0}


def test_the_result_counts_before_the_metrics(tmp_path: Path) -> None:
    run = create_run(tmp_path, "a-222222", {"kind": "local"})
    assert metrics_of(run) == {}
    append_lines(run.path / "metrics.jsonl", ['{"loss": 2, "step": 1}', '{"loss": 1.5, "step": 2}', '{"loss": NaN}'])
    (run.path / "result.json").write_text(json.dumps({"accuracy": 0.9, "step": 3, "data": "mnist", "ok": True}))
    assert metrics_of(run) == {"loss": 1.5, "step": 3.0, "accuracy": 0.9}
    with pytest.raises(UsageError, match="they have: accuracy, loss, step"):
        check_metric("speed", [metrics_of(run)])
