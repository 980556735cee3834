"""What was made of a file is kept for as long as the file stays as it is, and no longer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.runs.files.file_cache import FileCache
from orchestrator.runs.store import RunDir, create_run
from tests.events import event


def test_a_file_is_read_again_when_anything_of_it_changes(tmp_path: Path) -> None:
    path, cache, reads = tmp_path / "f", FileCache(), []

    def read() -> str:
        reads.append(1)
        return path.read_text() if path.exists() else "nothing"

    def look() -> tuple[str, int]:
        return cache.of_file(str(path), read), len(reads)

    assert [look(), look()] == [("nothing", 1), ("nothing", 1)]
    path.write_text("one")
    assert [look(), look()] == [("one", 2), ("one", 2)]
    (tmp_path / "g").write_text("two")
    os.utime(tmp_path / "g", ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.replace(tmp_path / "g", path)  # of the same size and time
    assert look() == ("two", 3)
    with path.open("a") as file:
        file.write("!")
    assert look() == ("two!", 4)
    os.utime(path, (1, 1))
    assert look() == ("two!", 5)
    path.unlink()
    assert look() == ("nothing", 6)


def test_a_missing_file_is_not_opened_if_its_value_is_known(tmp_path: Path) -> None:
    path, cache = tmp_path / "f", FileCache()
    assert cache.of_file(str(path), path.read_text, "") == ""
    path.write_text("one")
    assert cache.of_file(str(path), path.read_text, "") == "one"
    path.unlink()
    assert cache.of_file(str(path), path.read_text, "") == ""


def test_a_file_that_cant_be_read_is_tried_again(tmp_path: Path) -> None:
    cache = FileCache()
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            cache.of_file(str(tmp_path / "f"), lambda: _raise(ValueError("broken")))
    assert cache.of_file(str(tmp_path / "f"), lambda: 3) == 3


def _raise(error: Exception) -> None:
    raise error


def test_events_are_the_same_object_until_one_is_added(tmp_path: Path) -> None:
    run, cache = create_run(tmp_path, "r", {}), FileCache()
    assert run.events(cache) == ()
    run.append_event(event("submitted"))
    first = run.events(cache)
    assert [event.kind for event in first] == ["submitted"]
    assert run.events(cache) is first
    run.node(1).mkdir()
    (run.node(1) / "events.jsonl").write_text('{"kind": "go", "node": 1, "attempt": 0, "world_size": 2}\n')
    assert [event.kind for event in run.events(cache)] == ["submitted", "go"]
    assert run.events(cache) == run.events() == RunDir(run.path).events(FileCache())
