"""Contents that a machine lacks are sent once: small ones together, large ones in pieces, and nothing false is kept."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from orchestrator.backends.mirror import contents
from orchestrator.backends.mirror.contents import send_contents
from orchestrator.errors import BackendError
from tests.machines import FakeMachine


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Files here by their sha256; the last is too large for a request."""
    monkeypatch.setattr(contents, "BATCH", 100)
    found = {}
    for number, size in enumerate((30, 40, 60, 2_500_000)):
        data = os.urandom(size)
        found[hashlib.sha256(data).hexdigest()] = tmp_path / str(number)
        (tmp_path / str(number)).write_bytes(data)
    return found


def kept(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (tmp_path / "there/cache/wheels").iterdir()}


def test_they_come_whole_and_are_not_sent_again(paths: dict[str, Path], tmp_path: Path) -> None:
    machine = FakeMachine()
    assert send_contents(machine, str(tmp_path / "there"), "wheels", paths) == 2_500_130
    assert kept(tmp_path) == {digest: path.read_bytes() for digest, path in paths.items()}
    assert machine.verbs() == ["missing", "unpack", "begin_file", *["write_piece"] * 4]
    assert send_contents(machine, str(tmp_path / "there"), "wheels", paths) == 0
    assert machine.verbs()[7:] == ["missing"]


def test_a_large_file_that_is_another_one_is_refused(paths: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "3").write_bytes(bytes(2_500_000))
    with pytest.raises(BackendError, match="was changed on the way"):
        send_contents(FakeMachine(), str(tmp_path / "there"), "wheels", paths)
    assert len(kept(tmp_path)) == 3
