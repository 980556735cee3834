"""Parts of many files in one answer: only what was wanted, with hashes, through no link."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.server import sending
from orchestrator.node.server.sending import HASH_BYTES, Parts, read_files
from tests.patience import PATIENCE


def facts(path: Path) -> list[int]:
    info = path.stat()
    return [info.st_size, info.st_mtime_ns]


def ask(folder: Path, *files: list[Any], hashed: bool = True, **values: Any) -> tuple[list[Any], Parts]:
    """Request [path, offset, count, facts, sha256] of files below a folder."""
    payload = json.dumps([[0, *each] for each in files]).encode()
    found, parts = read_files({"below": [str(folder)], "hashed": hashed, **values}, payload)
    assert isinstance(parts, Parts)
    return found["files"], parts


def test_many_files_come_in_one_answer_with_their_hashes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("grown since")
    (tmp_path / "c").symlink_to("a")
    os.mkfifo(tmp_path / "d")
    known = hashlib.sha256(b"grown since").hexdigest()
    now, other = facts(tmp_path / "a"), facts(tmp_path / "b")
    rows, parts = ask(
        tmp_path, ["a", 0, 3, now, ""], ["b", 0, 2, [2, 1], ""], ["c", 0, 3, None, ""], ["d", 0, 1, None, ""],
        ["gone", 0, 1, None, ""], ["b", 6, 99, None, ""], ["b", 0, 99, other, known], ["../x", 0, 1, None, ""],
    )  # fmt: skip
    assert rows == [[3, *now, False], None, None, None, None, [5, *other, False], [0, *other, True], None]
    data = parts.read()
    assert data == b"one" + hashlib.sha256(b"one").digest() + b"since" + hashlib.sha256(b"since").digest()
    assert parts.count == 0  # nothing is open any more


def test_without_hashes_the_bytes_follow_one_another(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    assert ask(tmp_path, ["a", 1, 9, None, ""], ["a", 0, 1, None, ""], hashed=False)[1].read() == b"neo"


def test_a_file_is_read_through_no_link_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/key").write_text("SECRET")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/folder").symlink_to(tmp_path / "private")
    assert ask(tmp_path / "run", ["folder/key", 0, 9, None, ""])[0] == [None]


@pytest.mark.parametrize("hashed", [True, False])
def test_a_file_that_is_shorter_by_now_keeps_the_connection_in_order(tmp_path: Path, hashed: bool) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "b").write_bytes(b"y")
    _, parts = ask(tmp_path, ["a", 0, 1 << 40, None, ""], ["b", 0, 1, None, ""], hashed=hashed)
    os.truncate(tmp_path / "a", 1_000_000)
    with open(tmp_path / "sent", "w+b") as sink:
        parts.send(sink)
    data, tail = (tmp_path / "sent").read_bytes(), HASH_BYTES * hashed
    assert data[:3_000_000] == b"x" * 1_000_000 + bytes(2_000_000)
    assert not any(data[3_000_000 : 3_000_000 + tail])
    assert data[3_000_000 + tail :] == b"y" + (hashlib.sha256(b"y").digest() if hashed else b"")


def test_the_hash_of_a_file_that_changes_while_it_is_read_is_no_hash(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    _, parts = ask(tmp_path, ["a", 0, 10, None, ""])
    os.utime(tmp_path / "a", (1, 1))
    assert parts.read() == b"x" * 10 + bytes(HASH_BYTES)


def test_weights_that_a_program_may_still_be_writing_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rested = tmp_path / "last.pt", threading.Event()
    path.write_bytes(b"half")

    def writes_the_rest(_: float) -> None:
        if not rested.is_set():
            path.write_bytes(b"half and whole")
        else:
            os.utime(path, (time.time() - 10, time.time() - 10))
        rested.set()

    monkeypatch.setattr(sending.time, "sleep", writes_the_rest)
    rows, parts = ask(tmp_path, ["last.pt", 0, 99, None, ""], still=1.0)
    assert rows[0][0] == 14
    assert parts.read()[:14] == b"half and whole"
    path.write_bytes(b"again")
    monkeypatch.setattr(sending, "PATIENCE", 0.0)
    assert ask(tmp_path, ["last.pt", 0, 99, None, ""], still=PATIENCE)[0] == [None]
