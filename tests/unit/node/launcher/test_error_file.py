"""What a rank leaves of an exception that ended it, with a torch that stands in for one on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.launcher.rank.error_file import ended_file, write_error


def torch_on_a_gpu(*, records: bool) -> Any:
    def dump(path: str) -> None:
        Path(path).write_bytes(b"snapshot")

    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 0,
        max_memory_allocated=lambda _: 70,
        max_memory_reserved=lambda _: 80,
        get_device_properties=lambda _: SimpleNamespace(total_memory=90),
        memory=SimpleNamespace(_dump_snapshot=dump),
    )
    return SimpleNamespace(cuda=cuda, _C=SimpleNamespace(_cuda_isHistoryEnabled=lambda: records))


@pytest.mark.parametrize(
    ("said", "records", "left"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", True, ["memory_rank_3.pickle"]),
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", False, []),
        ("the loss is no number", True, []),
    ],
)
def test_a_recorded_history_of_memory_is_left_where_it_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, records: bool, left: list[str]
) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    monkeypatch.setenv("ORCH_OUTPUT_DIR", str(outputs))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setitem(sys.modules, "torch", torch_on_a_gpu(records=records))
    write_error(str(tmp_path / "error.json"), RuntimeError(said), None)
    record = json.loads((tmp_path / "error.json").read_text())
    assert [path.name for path in outputs.iterdir()] == left
    assert record.get("snapshot") == (left[0] if left else None)
    assert record.get("memory") == ({"allocated": 70, "reserved": 80, "total": 90} if "CUDA" in said else None)


def test_a_disk_that_takes_no_snapshot_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_OUTPUT_DIR", str(tmp_path / "missing"))
    monkeypatch.setitem(sys.modules, "torch", torch_on_a_gpu(records=True))
    write_error(str(tmp_path / "error.json"), RuntimeError("CUDA out of memory."), None)
    record = json.loads((tmp_path / "error.json").read_text())
    assert (record["message"], "snapshot" in record) == ("CUDA out of memory.", False)


@pytest.mark.parametrize(
    ("ending", "has_ended"),
    [("pass", True), ("sys.exit()", True), ("sys.exit(1)", False), ("sys.exit('no data')", False), ("1 / 0", False)],
)
def test_a_rank_that_leaves_with_an_error_has_not_ended_its_work(tmp_path: Path, ending: str, has_ended: bool) -> None:
    error_file = tmp_path / "error_0.json"
    lines = (
        "import sys",
        "from orchestrator.node.launcher.rank.error_file import note_end_at_exit, write_error_at_end",
        f"write_error_at_end({str(error_file)!r}, 0o600)",
        f"note_end_at_exit({str(error_file)!r}, 0o600)",
        ending,
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=False, capture_output=True)
    assert Path(ended_file(str(error_file))).exists() == has_ended
