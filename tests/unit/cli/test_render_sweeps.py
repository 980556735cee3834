"""Sweeps as text, and their ranking."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.render import runs, sweeps
from orchestrator.errors import RunNotFoundError
from orchestrator.outcome.verdict import Cause, Outcome, Verdict
from orchestrator.runs.run_id import point_id
from orchestrator.runs.state import RunState, RunStatus
from orchestrator.runs.store import RunDir, append_lines, create_run, find_run, newest_groups, remove_run
from orchestrator.runs.sweeps import find_runs, find_sweep, make_sweep, newest_sweep, points_in

from .test_render_runs import BEAT, NOW, RUNNING, golden

SWEEP = "digits_ddp-qpcqr9"


def point(index: int, state: RunStatus, **values: object) -> RunState:
    return replace(
        RUNNING, run_id=point_id(SWEEP, index), state=state, created=NOW - 300, **{"started": None, **values}
    )


SAID_NO = Verdict(Outcome.FAILED, Cause.USER_ERROR, "rank 0 said no")
POINTS = [
    point(0, RunStatus.SUCCEEDED, started=NOW - 200, ended=NOW - 100, verdict=Verdict(Outcome.SUCCEEDED)),
    point(
        1,
        RunStatus.FAILED,
        started=NOW - 100,
        ended=NOW - 50,
        verdict=Verdict(Outcome.FAILED, Cause.USER_ERROR, "rank 0 said no"),
    ),
    point(2, RunStatus.RUNNING, started=NOW - 50),
    point(3, RunStatus.PENDING, detail=f"waits for its turn: 1 of {SWEEP} at a time"),
]


def test_a_sweep_is_one_line_and_unfolds() -> None:
    lines = [runs.status_line(RUNNING, BEAT, NOW), sweeps.sweep_line(SWEEP, POINTS, NOW)]
    values = [{"lr": lr, "seed": str(seed)} for lr in ("1e-2", "1e-3") for seed in range(2)]
    page = sweeps.sweep_page(SWEEP, list(zip(POINTS, values, strict=True)), NOW)
    golden("status_sweep", f"{runs.status_lines(lines)}\n\n----\n\n{page}")


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
    assert sweeps.overall([point(0, state) for state in states.split()]) == word


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
    # Two sweeps at once: their points alternate in the index, in no order.
    mixed = [points[1], points[3], other, points[0], *points[4:], points[2]]
    (tmp_path / "index").write_text("".join(f"{run.run_id}\n" for run in mixed))
    assert newest_groups(tmp_path) == [points, [other]]
    assert newest_groups(tmp_path, 1) == [points]
    for run in points:
        assert (tmp_path / "elsewhere").exists()
        remove_run(tmp_path, run)
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "sweeps" / SWEEP).is_symlink()
    assert newest_groups(tmp_path) == [[RunDir(other.path)]]
