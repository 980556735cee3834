"""The places of files in a run's folder."""

from __future__ import annotations

from pathlib import Path

from orchestrator.protocol.layout import is_own_file, newest_attempt


def test_the_newest_attempt_has_the_highest_number_whatever_else_lies_in_the_folder(tmp_path: Path) -> None:
    assert newest_attempt(f"{tmp_path}/gone") == f"{tmp_path}/gone/attempt_0"
    for name in ("attempt_2", "attempt_10", "attempt_10.old", "attempt_", "launcher99"):
        (tmp_path / name).mkdir()
    assert newest_attempt(str(tmp_path)) == f"{tmp_path}/attempt_10"


def test_the_recorded_report_of_any_scheduler_is_orchs_own_file() -> None:
    assert is_own_file("slurm.json", here=True)
    assert is_own_file("batch.json", here=True)
    assert not is_own_file("batch.json", here=False)
