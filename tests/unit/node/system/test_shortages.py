"""An error of the system that says that something is used up names the resource and its limit."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from orchestrator.node.system import shortages
from orchestrator.node.system.cgroup import process_limits
from orchestrator.node.system.shortages import shortage


def error(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)


def test_which_limit_of_processes_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortages, "process_limits", lambda: [("/g/own", 4000, 10), ("/g", 40, 39)])
    for told in (RuntimeError("can't start new thread"), error(errno.EAGAIN)):
        assert shortage(told) == "no process or thread can be started: its cgroup has 39 of at most 40 (pids.max of /g)"
    monkeypatch.setattr(shortages, "process_limits", list)
    allowed = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    assert shortage(error(errno.EAGAIN)).endswith(f"ulimit -u allows this user {allowed}")


def test_files_memory_and_inodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shortage(error(errno.EMFILE)).startswith("no file can be opened: ulimit -n allows ")
    assert "fs.file-max" in shortage(error(errno.ENFILE))
    monkeypatch.setattr(shortages, "memory_limits", lambda: [("/g", 200 << 20)])
    for told in (MemoryError(), error(errno.ENOMEM)):
        assert shortage(told) == "no memory is left: its cgroup has at most 200.0 MiB (/g)"
    full = error(errno.ENOSPC, str(tmp_path / "x"))
    assert shortage(full) == ""  # room is missing, and the error says so itself
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((4096, 4096, 9, 9, 9, 100, 0, 0, 0, 255)))
    assert shortage(full) == f"no inode is left on the file system of {tmp_path}/x"
    for other in (ValueError("x"), error(errno.ENOENT)):
        assert shortage(other) == ""


def test_the_limits_of_processes_of_a_cgroup_and_of_those_above_it(tmp_path: Path) -> None:
    own = tmp_path / "pids/a/b"
    own.mkdir(parents=True)
    (own / "pids.max").write_text("max\n")
    (own.parent / "pids.max").write_text("40\n")
    (own.parent / "pids.current").write_text("39\n")
    groups = tmp_path / "cgroup"
    groups.write_text("8:pids:/a/b\n4:memory:/x\n")
    assert process_limits(str(groups), str(tmp_path)) == [(str(own.parent), 40, 39)]
