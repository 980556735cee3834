"""Files are there whole or not at all, whoever is killed, whatever lies in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.protocol import files
from orchestrator.protocol.reading import open_own


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "record.json"
    for content in (b"one", b"", b"three" * 100_000):
        files.write_atomic(path, content, durable=durable)
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_private_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "task.json"
    path.write_text("everybody's")
    files.write_json(path, {"token": "x"}, mode=files.PRIVATE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text()) == {"token": "x"}


def test_a_relative_path_is_one_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files.write_atomic("name", b"content")
    assert Path("name").read_bytes() == b"content"


def test_what_can_not_be_written_leaves_the_file_before_it(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_atomic(path, b"content")
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(FileNotFoundError):
        files.write_atomic(tmp_path / "nothing" / "name", b"content")


def test_a_link_in_the_way_is_replaced_and_never_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, path = tmp_path / "elsewhere", tmp_path / "name"
    target.write_text("untouched")
    path.symlink_to(target)
    files.write_atomic(path, b"content")
    assert (target.read_text(), path.is_symlink(), path.read_bytes()) == ("untouched", False, b"content")
    # Even who has guessed the temporary name gets nothing written through his link.
    guessed = files.temporary_name(path)
    os.symlink(target, guessed)
    monkeypatch.setattr(files, "temporary_name", lambda _: guessed)
    with pytest.raises(FileExistsError):
        files.write_atomic(path, b"through")
    assert target.read_text() == "untouched"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, os.O_RDWR | os.O_CREAT])
def test_a_pipe_in_the_place_of_a_file_of_ones_own_is_an_error_at_once(tmp_path: Path, flags: int) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="fifo"):
        open_own(tmp_path / "fifo", flags)
    with pytest.raises(OSError, match="fifo"):
        files.append_lines(tmp_path / "fifo", ["line"])
    with pytest.raises(OSError, match="fifo"), files.locked(tmp_path / "fifo", create=False):
        pass


def test_a_temporary_name_can_not_be_guessed_and_says_whether_its_writer_may_be_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {files.temporary_name(tmp_path / "verdict.json") for _ in range(100)}
    assert len(names) == 100
    for name in names:
        assert files.is_being_written(name)
        assert os.path.dirname(name) == str(tmp_path)
        assert os.path.basename(name).startswith(".verdict.json.")
    mine = next(iter(names))
    ended = mine.replace(f".{os.getpid()}.tmp", f".{2**22 + 1}.tmp")
    for name in (ended, "a.json", ".a.12.tmp", "a.tmp", "a.x.tmp"):
        assert not files.is_being_written(name)
        assert files.has_lost_its_writer(name) == (name == ended)
    assert not files.has_lost_its_writer(mine)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="elsewhere"))
    assert not files.is_being_written(ended)  # it is not there any more
    Path(ended).touch()
    assert files.is_being_written(ended)  # that number may be a living process's where it was written
    assert not files.has_lost_its_writer(ended)
    os.utime(ended, (1, 1))
    assert not files.is_being_written(ended)


def test_lines_of_several_writers_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"

    def write(number: int) -> None:
        for count in range(50):
            files.append_lines(path, [json.dumps([number, count])])

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(lines) == [[number, count] for number in range(4) for count in range(50)]


def test_a_cut_off_line_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_text("one\ntw")
    files.append_lines(path, ["three", "four"])
    assert path.read_text() == "one\ntw\nthree\nfour\n"


def test_a_lock_ends_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys; from orchestrator.protocol.files import locked\n"
        f"with locked({str(path)!r}):\n    print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        taken = threading.Event()

        def wait() -> None:
            with files.locked(path):
                taken.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert not taken.is_set()
        holder.kill()
        waiter.join()
        assert taken.is_set()


def test_a_line_in_place_takes_no_new_room_and_leaves_nothing_of_a_longer_one(tmp_path: Path) -> None:
    path = tmp_path / "word"
    for value in ({}, {"problem": "é" * 20}, {"problem": ""}):
        files.overwrite_line(path, value, 256)
        assert path.stat().st_size == 256
        assert json.loads(path.read_text()) == value
    with pytest.raises(ValueError, match="word: 313 bytes do not fit into 256 bytes"):
        files.overwrite_line(path, "x" * 310, 256)
    assert json.loads(path.read_text()) == {"problem": ""}
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="link"):
        files.overwrite_line(tmp_path / "link", {}, 256)


def test_a_folder_goes_although_a_writer_that_had_found_it_before_finishes_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, unlink = tmp_path / "run", os.unlink
    (folder / "nodes").mkdir(parents=True)
    (folder / ".verdict.json.tmp").write_text("{}")

    def after_the_writer(name: str, *, dir_fd: int | None = None) -> None:
        if name == ".verdict.json.tmp":
            os.replace(name, "verdict.json", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", after_the_writer)
    files.remove_tree(folder)
    assert os.listdir(tmp_path) == []
    files.remove_tree(folder)  # it is gone: no error


def test_a_folder_that_others_keep_filling_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").touch()
    monkeypatch.setattr(os, "unlink", lambda *_, **__: None)
    with pytest.raises(OSError, match="not empty"):
        files.remove_tree(tmp_path / "run")


@pytest.mark.parametrize("number", files.NO_LOCKS)
def test_a_file_system_without_locks_is_named_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.fcntl, "flock", flock)
    path = tmp_path / "supervisor.lock"
    for lock in (files.locked, files.locked_if_free):
        with pytest.raises(OSError, match="its file system has no file locks") as caught, lock(path):
            pass
        assert (caught.value.filename, caught.value.errno) == (str(path), number)
