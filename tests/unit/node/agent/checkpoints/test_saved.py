"""The progress of a run, as the checkpoints on a node show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.agent.checkpoints.saved import progress
from tests.unit.node.agent.checkpoints.test_replica import commit, task


@pytest.mark.parametrize(
    ("fields", "step"),
    [({}, 7), ({"checkpoint_format": "deepspeed"}, -1), ({"checkpoint_glob": "models/"}, -1)],
)
def test_orchs_checkpoints_count_unless_the_job_names_others(tmp_path: Path, fields: dict[str, Any], step: int) -> None:
    commit(tmp_path, 7, b"weights")
    assert progress(task(tmp_path, 0, **fields)).step == step
