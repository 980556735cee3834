"""The progress of a run, as the checkpoints on a node show it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent.checkpoints.saved import progress
from orchestrator.protocol.checkpoints.of_run import Places
from orchestrator.protocol.code_baseline import write_baseline
from tests.unit.node.agent.checkpoints.test_replica import commit, task


@pytest.mark.parametrize(
    ("fields", "step"),
    [({}, 7), ({"checkpoint_format": "deepspeed"}, -1), ({"checkpoint_glob": "models/"}, -1)],
)
def test_orchs_checkpoints_count_unless_the_job_names_others(tmp_path: Path, fields: dict[str, Any], step: int) -> None:
    commit(tmp_path, 7, b"weights")
    assert progress(task(tmp_path, 0, **fields)).step == step


def test_the_checkpoint_of_an_earlier_run_from_which_this_one_goes_on_counts_too(tmp_path: Path) -> None:
    (tmp_path / "run/code").mkdir(parents=True)
    path = commit(tmp_path, 7, b"weights")
    for file in path.iterdir():
        os.utime(file, (0, 0))  # before the baseline
    write_baseline(str(tmp_path / "run/code"), {})
    its = task(tmp_path / "run", 0, code_dir=str(tmp_path / "run/code"), checkpoint_dir=str(tmp_path / "checkpoints"))
    assert Places.of(its).look().saved == []
    assert progress(its).step == 7
