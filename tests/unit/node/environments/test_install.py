"""uv on a node is run from a copy whose bytes were hashed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from orchestrator.node.environments.install import InstallError, _verified_copy


def test_a_program_is_run_from_a_copy_that_was_hashed_and_no_other_is_run(tmp_path: Path) -> None:
    kept, copy = tmp_path / "kept", tmp_path / "uv"
    kept.write_bytes(b"#!/bin/sh\n")
    digest = hashlib.sha256(kept.read_bytes()).hexdigest()
    assert _verified_copy(str(kept), digest, str(copy)) == str(copy)
    kept.write_bytes(b"#!/bin/sh\ntouch evil\n")
    assert copy.read_bytes() == b"#!/bin/sh\n"
    with pytest.raises(InstallError, match="do not match the sha256 in its name"):
        _verified_copy(str(kept), digest, str(tmp_path / "other"))
