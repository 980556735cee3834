"""GPUs and slots that two runs can't both hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.server import leases
from orchestrator.node.server.request import RefusedError


def test_slots_are_held_by_descriptors_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "FOLDER", str(tmp_path / "leases"))
    monkeypatch.setattr(leases, "gpus", lambda: 0)
    asked = {"slots": 3, "count": 2}
    assert leases.lease({**asked, "run_id": "one"}, b"")[0] == {"places": ["slot-0", "slot-1"]}
    with pytest.raises(RefusedError, match=r"only 1 of 3 slots are free, 2 are needed: slot-0 by .*'s run one; slot-1"):
        leases.lease({**asked, "run_id": "two"}, b"")
    with pytest.raises(RefusedError, match="it has 3 slots, and 4 are asked for"):
        leases.lease({"slots": 3, "count": 4, "run_id": "two"}, b"")
    shown = leases.leases({"slots": 3}, b"")[0]["places"]
    assert [holder and holder["run"] for holder in shown.values()] == ["one", "one", None]
    assert leases.release({"run_id": "one"}, b"")[0] == {"released": 2}
    assert leases.lease({**asked, "run_id": "two"}, b"")[0]["places"] == ["slot-0", "slot-1"]
    leases.release({"run_id": "two"}, b"")
    assert leases.lease({"slots": None, "count": 2, "run_id": "three"}, b"")[0] == {"places": []}  # nothing is counted
