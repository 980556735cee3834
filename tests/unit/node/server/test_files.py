"""What a machine's server tells of a run's files there."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.server.files import has_begun


def test_a_job_has_begun_once_its_script_has_opened_a_log(tmp_path: Path) -> None:
    asked = {"run_dir": str(tmp_path)}
    assert has_begun(asked, b"")[0] == {"begun": False}
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "submission.sh").touch()
    (tmp_path / "slurm" / "task.pkl").touch()
    assert has_begun(asked, b"")[0] == {"begun": False}
    (tmp_path / "slurm" / "batch.17.0.log").touch()
    assert has_begun(asked, b"")[0] == {"begun": True}


def test_a_folder_that_can_not_be_listed_is_not_called_unused(tmp_path: Path) -> None:
    (tmp_path / "slurm").touch()
    with pytest.raises(NotADirectoryError):
        has_begun({"run_dir": str(tmp_path)}, b"")
