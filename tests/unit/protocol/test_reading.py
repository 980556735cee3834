"""The reader of files that others write: it reads ordinary files, and anything else is an error at once."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.protocol import reading

NAME = "nodes/0/attempt_0/beat_0"
pytestmark = pytest.mark.timeout(60)  # whoever waits for a pipe waits for ever


@pytest.fixture(params=["linux", "darwin"], autouse=True)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS has no descriptors that only look at a file."""
    monkeypatch.setattr(sys, "platform", request.param)
    if request.param == "darwin":
        monkeypatch.setattr(reading, "PASS", os.O_RDONLY)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    (run / NAME).parent.mkdir(parents=True)
    (run / NAME).write_bytes(b'{"step": 1}')
    (tmp_path / "private").mkdir()
    for name in ("private", "private/beat_0"):
        (tmp_path / name).is_dir() or (tmp_path / name).write_text("SECRET")
    return run


@pytest.fixture(params=["fifo", "socket", "device", "link", "link to a folder", "folder", "nothing"])
def odd(request: pytest.FixtureRequest, run: Path) -> Iterator[Path]:
    """Give the file's path, with something else in its place."""
    path, held = run / NAME, socket.socket(socket.AF_UNIX)
    path.unlink()
    if request.param == "fifo":
        os.mkfifo(path)
    elif request.param == "socket":
        here = os.open(path.parent, os.O_RDONLY)
        held.bind(f"/proc/self/fd/{here}/{path.name}")  # a socket's path may have 107 bytes
        os.close(here)
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    elif request.param == "link":
        path.symlink_to(run.parent / "private/beat_0")
    elif request.param == "link to a folder":
        path.parent.rmdir()
        path.parent.symlink_to(run.parent / "private")
    elif request.param == "folder":
        path.mkdir()
    yield path
    held.close()


READERS = {
    "descriptor_of": reading.descriptor_of,
    "opened": reading.opened,
    "info_of": reading.info_of,
    "read_regular": lambda path, below: reading.read_regular(path, 100, below),
    "read_part": lambda path, below: reading.read_part(path, 0, 100, below),
    "read_json": lambda path, below: reading.read_json(path, 100, below),
}


def test_an_object_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "beat_0"
    assert reading.read_object(path, 100) is None
    for text in ('{"a": ', "[1]", '{"a": "' + 100 * "x" + '"}'):
        path.write_text(text)
        assert reading.read_object(path, 100, tmp_path) is None
    path.write_text('{"a": 1}')
    assert reading.read_object(path, 100, tmp_path) == {"a": 1}


@pytest.mark.parametrize("name", READERS)
def test_anything_else_in_the_place_of_a_file_is_an_error_that_names_it(run: Path, odd: Path, name: str) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="beat_0"):
        READERS[name](odd, run)
    if not odd.parent.is_symlink():
        with pytest.raises(OSError, match="beat_0"):
            READERS[name](odd, None)
    assert os.listdir("/proc/self/fd") == before


def test_the_files_of_a_folder_are_read_by_one_walk_and_odd_ones_are_left_out(run: Path, odd: Path) -> None:
    found: list[tuple[str, bytes]] = []
    before = os.listdir("/proc/self/fd")
    if odd.parent.is_symlink():
        with pytest.raises(OSError, match="link"):
            found += reading.read_each(odd.parent, lambda _: True, 100, run)
    else:
        for name in ("beat_1", "beat_2", "rank_1.log"):
            odd.with_name(name).write_text(name * (30 if name == "beat_2" else 1))
        found += reading.read_each(odd.parent, lambda name: name.startswith("beat_"), 100, run)
    assert found == ([] if odd.parent.is_symlink() else [("beat_1", b"beat_1")])
    assert os.listdir("/proc/self/fd") == before


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end_or_its_bound(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.read

    def read(descriptor: int, count: int) -> bytes:
        with open(run / NAME, "ab") as file:
            file.write(b"more" if os.path.getsize(run / NAME) < 30 else b"")
        return real(descriptor, count)

    monkeypatch.setattr(os, "read", read)
    assert reading.read_regular(run / NAME, 100, run).startswith(b'{"step": 1}more')
    os.truncate(run / NAME, 11)
    with pytest.raises(OSError, match="larger than 12 bytes"):
        reading.read_regular(run / NAME, 12, run)


def test_a_file_that_the_kernel_returns_in_parts_is_read_whole(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, count: real(descriptor, min(count, 4)))
    assert reading.read_regular(run / NAME, 100, run) == b'{"step": 1}'


def test_a_device_is_not_opened() -> None:
    for below in (None, "/dev"):
        with pytest.raises(OSError, match="a device, not an ordinary file"):
            reading.read_regular("/dev/zero", 100, below)


@pytest.mark.parametrize("below", [True, False])
def test_an_ordinary_file_is_read_whole_in_parts_and_as_json(run: Path, below: bool) -> None:
    path, top = str(run / NAME), run if below else None
    assert reading.read_regular(path, 11, top) == b'{"step": 1}'
    assert reading.read_part(path, 2, 4, top) == b"step"
    assert reading.read_part(path, -2, 100, top) == b"1}"
    assert reading.read_part(path, -100, 100, top) == b'{"step": 1}'
    assert reading.read_json(path, 11, top) == {"step": 1}
    assert reading.info_of(path, top).st_size == 11
    with reading.opened(path, top) as file:
        assert file.read() == b'{"step": 1}'


def test_a_file_that_is_too_large_is_not_read(run: Path) -> None:
    os.truncate(run / NAME, 1 << 40)  # sparse
    with pytest.raises(OSError, match="larger than 1 MiB") as raised:
        reading.read_regular(run / NAME, 1 << 20, run)
    assert raised.value.errno == errno.EFBIG


def test_a_missing_file_is_told_from_one_that_is_refused(run: Path) -> None:
    for path in (run / "nodes/1/events.jsonl", run / "nodes/0/none"):
        with pytest.raises(FileNotFoundError):
            reading.read_regular(path, 10, run)


def test_a_path_that_leads_out_of_the_folder_is_refused(run: Path) -> None:
    for path in (f"{run}/nodes/../../private/beat_0", f"{run.parent}/private/beat_0", f"{run}-not/x", str(run)):
        with pytest.raises(OSError, match="not below"):
            reading.read_regular(path, 10, run)


def test_the_run_s_folder_itself_may_be_reached_through_a_link(run: Path) -> None:
    """A profile may keep its runs elsewhere, and then the state folder holds a link."""
    (run.parent / "link").symlink_to(run)
    assert reading.read_regular(run.parent / "link" / NAME, 100, run.parent / "link") == b'{"step": 1}'
