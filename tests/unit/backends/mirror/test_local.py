"""Copies on this machine: only what is missing, in a state that the source had, without losing what was there."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from orchestrator.backends.mirror import local
from orchestrator.backends.mirror.local import copy_latest, is_continued_by
from orchestrator.protocol.arriving import Arriving
from orchestrator.protocol.writing import named_folder


def copy_to(source: Path, target: Path) -> tuple[int, str, str]:
    with named_folder(target.parent) as folder:
        return copy_latest(source, folder, target.name)


def test_what_grew_is_continued_and_other_content_is_replaced_with_the_mode_that_was_there(tmp_path: Path) -> None:
    source, target = tmp_path / "log", tmp_path / "to/log"
    for content, how in ((b"one", "copied"), (b"one", "kept"), (b"one two", "continued"), (b"on", "copied")):
        source.write_bytes(content)
        if target.exists():
            target.chmod(0o640)
        assert copy_to(source, target) == (len(content), hashlib.sha256(content).hexdigest(), how)
        assert target.read_bytes() == content
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_link_in_the_folder_that_the_user_named_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"new")
    (tmp_path / "real").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    copy_to(tmp_path / "source", tmp_path / "link")
    assert ((tmp_path / "link").is_symlink(), (tmp_path / "link").read_bytes()) == (False, b"new")
    assert (tmp_path / "real").read_bytes() == b""


def test_a_file_that_is_rewritten_during_the_copy_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, fill, copies = tmp_path / "last.pt", Arriving.fill, list[int]()
    source.write_bytes(b"a" * 3_000_000)

    def overwritten(self: Arriving, stream: object, count: int) -> None:
        fill(self, stream, count // 2)
        if not copies:
            source.write_bytes(b"b" * 3_000_000)
            os.utime(source, (1, 1))
        copies.append(count)
        fill(self, stream, count - count // 2)

    monkeypatch.setattr(local.Arriving, "fill", overwritten)
    assert copy_to(source, tmp_path / "out")[1] == hashlib.sha256(b"b" * 3_000_000).hexdigest()
    assert len(copies) == 2
    assert set((tmp_path / "out").read_bytes()) == {ord("b")}


@pytest.mark.parametrize(
    ("there", "is_one"), [(None, True), (b"", True), (b"be", True), (b"bx", False), (b"begins", False)]
)
def test_a_copy_loses_nothing_if_the_source_begins_with_what_is_there(
    tmp_path: Path, there: bytes | None, is_one: bool
) -> None:
    (tmp_path / "source").write_bytes(b"begin")
    if there is not None:
        (tmp_path / "target").write_bytes(there)
    with named_folder(tmp_path) as folder:
        assert is_continued_by(folder, "target", tmp_path / "source") is is_one
