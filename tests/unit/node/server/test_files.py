"""What a machine's server tells of a run's files there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.server.files import has_begun, poll_changes


def test_a_job_has_begun_once_its_script_has_opened_a_log(tmp_path: Path) -> None:
    asked = {"run_dir": str(tmp_path), "folder": "slurm"}
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
        has_begun({"run_dir": str(tmp_path), "folder": "slurm"}, b"")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Give a run's folder, and beside it a file that is nobody's business."""
    attempt = tmp_path / "run/nodes/0/attempt_0"
    attempt.mkdir(parents=True)
    for name in ("rank_0.log", "rank_1.log", "beat_0", "error_0.json", "flight_0", "result_0.json"):
        (attempt / name).write_text(f"own {name}")
    (tmp_path / "run/metrics.jsonl").write_text("{}")
    (tmp_path / "private").mkdir()
    (tmp_path / "private/rank_0.log").write_text("SECRET")
    return tmp_path / "run"


def look(run_dir: Path) -> dict[str, bytes]:
    asked: dict[str, Any] = {"run_dir": str(run_dir), "node": 0, "have": {}, "alive": None}
    values, data = poll_changes(asked, b"")
    assert isinstance(data, bytes)
    found, offset = {}, 0
    for name, size, *_ in values["files"]:
        found[name.rpartition("/")[2]], offset = data[offset : offset + size], offset + size
    return found


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["rank_0.log", "beat_0", "error_0.json", "flight_0", "result_0.json"])
@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_link_or_a_pipe_that_a_container_has_made_is_passed_over_and_the_rest_comes(
    run_dir: Path, name: str, kind: str
) -> None:
    path = run_dir / "nodes/0/attempt_0" / name
    path.unlink()
    if kind == "link":
        path.symlink_to(run_dir.parent / "private/rank_0.log")
    else:
        os.mkfifo(path)
    found = look(run_dir)
    assert name not in found
    assert found["rank_1.log"] == b"own rank_1.log"
    assert found["metrics.jsonl"] == b"{}"


def test_a_whole_folder_that_became_a_link_is_passed_over(run_dir: Path) -> None:
    folder = run_dir / "nodes/0/attempt_0"
    os.rename(folder, folder.with_name("elsewhere"))
    folder.symlink_to(run_dir.parent / "private")
    assert look(run_dir) == {"metrics.jsonl": b"{}"}
