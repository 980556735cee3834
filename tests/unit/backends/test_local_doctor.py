"""The doctor checks this machine for a local profile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.backends import local_doctor
from orchestrator.backends.base import Check
from orchestrator.specs.documents.loader import load_profile


def examined(folder: Path, torch: str, monkeypatch: pytest.MonkeyPatch, *sets: str) -> dict[str, Check]:
    """The checks with an interpreter that reports this torch."""
    python = folder / "python"
    python.write_text(f"""#!/bin/sh\necho '{{"python": "3.11.2", "torch": {torch}}}'\n""")
    python.chmod(0o755)
    (folder / "p.yaml").write_text(f"kind: local\nnproc_per_node: 2\npython: {python}\n")
    monkeypatch.setenv("ORCH_HOME", str(folder / "home"))
    monkeypatch.setattr(local_doctor, "gpus", lambda: 0)
    return {each.what: each for each in local_doctor.examine(load_profile(str(folder / "p.yaml"), sets=sets))}


def test_python_torch_disk_and_ranks_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_doctor, "cores", lambda: 2)
    rows = examined(tmp_path, '"2.9.0"', monkeypatch)
    assert set(rows) == {"python3", "workdir", "ranks", "shm", "training"}
    assert (rows["training"].level, rows["training"].host) == ("ok", os.uname().nodename)
    assert rows["training"].value == f"{tmp_path}/python: python 3.11.2, torch 2.9.0"
    assert rows["ranks"].value == "2 on 0 GPUs, 2 cores"
    assert rows["workdir"].value.startswith(f"{tmp_path}/home, ")


def test_each_lack_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_doctor, "cores", lambda: 2)
    monkeypatch.setattr(local_doctor, "LEAST_FREE", 1 << 70)
    monkeypatch.setattr(local_doctor, "LEAST_SHM", 1 << 70)
    rows = examined(tmp_path, "null", monkeypatch, "profile.nodes=3")
    assert {what: row.level for what, row in rows.items()} == {
        "python3": "ok", "workdir": "warn", "ranks": "warn", "shm": "warn", "training": "fail",
    }  # fmt: skip
    assert all(row.hint for row in rows.values() if row.level != "ok")
    assert rows["training"].value.endswith("torch missing")


def test_an_interpreter_that_does_not_start_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = examined(tmp_path, "null", monkeypatch, "profile.python=/nowhere/python")
    assert rows["training"].level == "fail"
    assert "/nowhere/python" in rows["training"].value
