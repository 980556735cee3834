"""Sweeps as text, and their ranking."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import render, sweep_pages
from orchestrator.errors import RunNotFoundError, UsageError
from orchestrator.ranking import Ranked, check_metric, is_better_lower, metrics_of, ranked
from orchestrator.records import RunState, Verdict
from orchestrator.store import RunDir, append_lines, create_run, find_run, newest_groups, remove_run
from orchestrator.sweep import point_id
from orchestrator.sweeps import find_runs, find_sweep, make_sweep, newest_sweep, points_in

from .test_render import BEAT, NOW, RUNNING, golden

SWEEP = "digits_ddp-qpcqr9"


def point(index: int, state: str, **values: object) -> RunState:
    return replace(
        RUNNING, run_id=point_id(SWEEP, index), state=state, created=NOW - 300, **{"started": None, **values}
    )


POINTS = [
    point(0, "succeeded", started=NOW - 200, ended=NOW - 100, verdict=Verdict("succeeded")),
    point(1, "failed", started=NOW - 100, ended=NOW - 50, verdict=Verdict("failed", "user_error", "rank 0 said no")),
    point(2, "running", started=NOW - 50),
    point(3, "pending", detail=f"waits for its turn: 1 of {SWEEP} at a time"),
]


def test_a_sweep_is_one_line_and_unfolds() -> None:
    lines = [render.status_line(RUNNING, BEAT, NOW), sweep_pages.sweep_line(SWEEP, POINTS, NOW)]
    values = [{"lr": lr, "seed": str(seed)} for lr in ("1e-2", "1e-3") for seed in range(2)]
    page = sweep_pages.sweep_page(SWEEP, list(zip(POINTS, values, strict=True)), NOW)
    golden("status_sweep", f"{render.status_lines(lines)}\n\n----\n\n{page}")


@pytest.mark.parametrize(
    ("states", "word"),
    [
        ("succeeded succeeded", "succeeded"),
        ("succeeded failed cancelled", "failed"),
        ("succeeded cancelled", "cancelled"),
        ("pending pending", "pending"),
        ("succeeded pending", "running"),
        ("starting pending", "starting"),
        ("unreadable", "unreadable"),
    ],
)
def test_the_state_of_all(states: str, word: str) -> None:
    assert sweep_pages.overall([point(0, state) for state in states.split()]) == word


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False)), st.booleans())
def test_a_ranking_loses_nobody_and_is_in_order(values: list[float | None], lower: bool) -> None:
    rows = [Ranked(str(index), "succeeded", {}, value) for index, value in enumerate(values)]
    found = ranked(rows, lower=lower)
    assert sorted(row.run_id for row in found) == sorted(row.run_id for row in rows)
    known = [row.value for row in found if row.value is not None]
    assert known == sorted(known, reverse=not lower)
    assert [row.value for row in found[len(known) :]] == [None] * (len(values) - len(known))
    assert all((row.rank is None) == (row.value is None) for row in found)
    assert all(row.rank == 1 for row in found if known and row.value == known[0])


def test_the_result_counts_before_the_metrics(tmp_path: Path) -> None:
    run = create_run(tmp_path, "a-222222", {"kind": "local"})
    assert metrics_of(run) == {}
    append_lines(run.path / "metrics.jsonl", ['{"loss": 2, "step": 1}', '{"loss": 1.5, "step": 2}', '{"loss": NaN}'])
    (run.path / "result.json").write_text(json.dumps({"accuracy": 0.9, "step": 3, "data": "mnist", "ok": True}))
    assert metrics_of(run) == {"loss": 1.5, "step": 3.0, "accuracy": 0.9}
    with pytest.raises(UsageError, match="they have: accuracy, loss, step"):
        check_metric("speed", [metrics_of(run)])
    assert is_better_lower("eval_loss")
    assert not is_better_lower("accuracy")


def test_a_name_means_a_run_or_a_sweep(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match="there are no sweeps yet"):
        newest_sweep(tmp_path)
    make_sweep(tmp_path, SWEEP, str(tmp_path / "elsewhere"), {"sweep": SWEEP})
    points = [create_run(tmp_path, point_id(SWEEP, index), {"kind": "local"}, indexed=False) for index in range(12)]
    append_lines(tmp_path / "index", [run.run_id for run in points])
    other = create_run(tmp_path, "digits_dp-333333", {"kind": "local"})
    assert points_in(tmp_path, SWEEP) == points
    assert find_sweep(tmp_path, SWEEP) == find_sweep(tmp_path, "digits_ddp") == newest_sweep(tmp_path) == SWEEP
    assert find_runs(tmp_path, "digits_ddp-q") == points
    assert find_runs(tmp_path, f"{SWEEP}.1") == [points[1]]
    assert find_runs(tmp_path, "last") == find_runs(tmp_path, "digits_dp-") == [other]
    for reference in ("digits", f"{SWEEP}.99", ""):
        assert find_sweep(tmp_path, reference) is None
        with pytest.raises(RunNotFoundError):
            find_runs(tmp_path, reference)
    with pytest.raises(RunNotFoundError, match=f"{SWEEP} is a sweep of 12 runs"):
        find_run(tmp_path, SWEEP)
    assert newest_groups(tmp_path, 2) == [[other], points]
    for run in points:
        assert (tmp_path / "elsewhere").exists()
        remove_run(tmp_path, run)
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "sweeps" / SWEEP).is_symlink()
    assert newest_groups(tmp_path) == [[RunDir(other.path)]]
