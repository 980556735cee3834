"""A checkpoint that was sent to a machine is moved to its place."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.node.server.checkpoints import commit_files


def test_what_an_interrupted_transfer_of_an_earlier_version_left_is_not_moved(tmp_path: Path) -> None:
    source, target = tmp_path / ".last.ckpt.given", tmp_path / "last.ckpt"
    source.mkdir()
    (source / "last.ckpt").write_text("new")
    (source / ".last.ckpt.999-111.partial").write_text("old")
    commit_files({"source": str(source), "target": str(target)}, b"")
    assert os.listdir(tmp_path) == ["last.ckpt"]
    assert target.read_text() == "new"
