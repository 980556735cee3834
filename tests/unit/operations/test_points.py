"""The groups that `orch status` counts: each sweep is one group with all of its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.operations.points import grouped
from orchestrator.runs.run_id import point_id
from orchestrator.runs.store import create_run, retire

SWEEP = "lr-abcdef"


@pytest.mark.parametrize("live", [(), (0, 4)])
def test_a_sweep_is_one_group_with_all_of_its_runs_though_others_came_between(
    tmp_path: Path, live: tuple[int, ...]
) -> None:
    points = [point_id(SWEEP, index) for index in range(6)]
    for run_id in [*points[:3], "other-111111", *points[3:], "other-222222"]:
        run = create_run(tmp_path, run_id, {"kind": "local", "nnodes": 1})
        if run_id not in [points[index] for index in live]:
            retire(tmp_path, run)

    def groups(limit: int) -> list[list[str]]:
        found = grouped(tmp_path, everything=False, limit=limit)
        return [[run.run_id for run, _ in group] for group in found]

    assert groups(2) == [["other-222222"], points]
    assert groups(3) == [["other-222222"], points, ["other-111111"]]
    assert groups(1) == [["other-222222"], *([points] if live else [])]
