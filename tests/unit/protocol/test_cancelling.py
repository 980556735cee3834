"""A cancel is recorded also on a disk that has no room left, in room that the agents have kept for it."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.protocol import cancelling
from orchestrator.protocol.cancelling import is_cancelled, keep_room_for_cancel, record_cancel
from orchestrator.runs.store import RunDir


@pytest.mark.parametrize("folder", [".", "nodes/0"])
def test_a_cancel_is_recorded_without_room_or_inodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = tmp_path / "a[b]-234567"
    (run / "nodes/0").mkdir(parents=True)
    monkeypatch.setattr(cancelling, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        record_cancel(run, {"now": False})
    keep_room_for_cancel(run / folder)
    inode = (run / folder / "reserve.json").stat().st_ino
    for now in (False, True):  # the second cancel overwrites the first
        record_cancel(run, {"now": now, "time": 1.0})
        assert json.loads((run / "cancel.json").read_text()) == {"now": now, "time": 1.0}
        assert (run / "cancel.json").stat().st_ino == inode


def test_with_room_the_reserve_stays(tmp_path: Path) -> None:
    (tmp_path / "nodes/0").mkdir(parents=True)
    keep_room_for_cancel(tmp_path / "nodes/0")
    assert not is_cancelled(tmp_path)
    record_cancel(tmp_path, {"now": True})
    assert is_cancelled(tmp_path)
    assert RunDir(tmp_path).is_cancelled
    assert json.loads((tmp_path / "cancel.json").read_text()) == {"now": True}
    assert (tmp_path / "nodes/0/reserve.json").exists()
