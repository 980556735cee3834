"""Finds the files in which a run's program writes metrics.

The files are recognised by their names. If a file came with the code and has not changed, it does not belong to the
run. Symbolic links are not followed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from typing import Callable, NamedTuple, Protocol

from orchestrator.node.agent.metrics.following import Followed, IsOver, Point
from orchestrator.node.agent.metrics.series import EVENT_FILE as _EVENT_FILE
from orchestrator.node.agent.metrics.tables import CsvFile, JsonLines, TrainerState
from orchestrator.node.agent.metrics.tensorboard import EventFile
from orchestrator.node.agent.metrics.wandb import WandbFile
from orchestrator.protocol.checkpoints.of_run import Places
from orchestrator.protocol.code_baseline import read_baseline
from orchestrator.protocol.layout import container_view, is_own_file
from orchestrator.protocol.outputs import CODE, OUTPUTS, Matcher, OutputRules
from orchestrator.protocol.task import NodeTask

MOST_ENTRIES = 50_000  # the most entries that one search looks at, because a data set may have millions of files
MOST_FILES = 300
DEEPEST = 12  # the most levels of folders that are searched


class Reader(Protocol):
    """The interface of a class that reads one file of metrics."""

    followed: Followed

    def read(self, is_over: IsOver) -> Iterator[Point]:
        """Yield the points that were added since the last call, until `is_over()` is True. Raises OSError if the file
        can't be read, or UnreadableError if it is damaged or too large.
        """


Pids = Mapping[int, int]
"""A dict from process id to rank, for the ranks that this node has or had."""


def reader_of(followed: Followed) -> Reader | None:
    """Return a reader for the file's format; None if the file's name matches no format of metrics."""
    name = os.path.basename(followed.path)
    if ".tfevents." in name:
        return EventFile(followed)
    found: dict[str, Callable[[Followed], Reader]] = {
        "metrics.csv": CsvFile, "metrics.jsonl": JsonLines, "trainer_state.json": TrainerState,
    }  # fmt: skip
    if name in found:
        return found[name](followed)
    return WandbFile(followed) if name.startswith("run-") and name.endswith(".wandb") else None


class _Folder(NamedTuple):
    """A folder to search. `skips` selects paths to skip, and `is_newer` selects files that were written during this
    run.
    """

    path: str
    skips: Callable[[str], bool] = lambda _: False
    is_newer: Callable[[str, os.stat_result], bool] = lambda *_: True


class Finder:
    """Finds the files of metrics that one run has written on this node."""

    def __init__(self, task: NodeTask) -> None:
        self.container = task.container is not None
        self.folders = list(_folders(task))
        self.matcher = Matcher(OutputRules())

    def find(self, pids: Pids) -> Iterator[Followed]:
        """Yield each file of metrics. Within a folder, the files are sorted by path."""
        room = [MOST_ENTRIES]
        for folder in self.folders:
            for path, info in self._walk(folder, "", room, 0):
                if folder.is_newer(path, info) and self._is_of_rank_0(os.path.basename(path), pids):
                    yield Followed(f"{folder.path}/{path}", folder.path)

    def _walk(self, folder: _Folder, below: str, room: list[int], depth: int) -> Iterator[tuple[str, os.stat_result]]:
        found: list[os.DirEntry[str]] = []
        try:
            with os.scandir(f"{folder.path}/{below}") as entries:
                for entry in entries:
                    room[0] -= 1
                    if room[0] < 0:
                        return
                    if entry.name == "pyvenv.cfg":
                        return
                    if entry.is_dir(follow_symlinks=False) or reader_of(Followed(entry.name, "")) is not None:
                        found.append(entry)
        except OSError:
            return
        for entry in sorted(found, key=lambda each: each.name):
            path = f"{below}{entry.name}"
            try:
                if folder.skips(path):
                    continue
                if not entry.is_dir(follow_symlinks=False):
                    if entry.is_file(follow_symlinks=False):
                        yield path, entry.stat(follow_symlinks=False)
                elif depth < DEEPEST and self.matcher.enters(path):
                    yield from self._walk(folder, f"{path}/", room, depth + 1)
            except OSError:
                continue

    def _is_of_rank_0(self, name: str, pids: Pids) -> bool:
        """Return whether rank 0 may have written the file. The name of an event file has the process id of its
        writer.
        """
        match = _EVENT_FILE.fullmatch(name)
        if match is None or not (self.container or match["host"] == socket.gethostname()):
            return True
        return pids.get(int(match["pid"][:10])) in (None, 0)


def _folders(task: NodeTask) -> Iterator[_Folder]:
    places = Places.of(task)
    code, made = read_baseline(task.code_dir)
    before = {path: facts for path, facts in code.items() if reader_of(Followed(path, "")) is not None}
    searched = [os.path.realpath(folder) for folder in places.folders.values()]
    is_checkpoints_own = f"{places.checkpoints}/".startswith((f"{task.run_dir}/", f"{task.code_dir}/"))

    def is_no_code(path: str, info: os.stat_result) -> bool:
        return before.get(path) != [info.st_size, info.st_mtime_ns]

    def is_new(_: str, info: os.stat_result) -> bool:
        return is_checkpoints_own or info.st_mtime_ns >= made

    def is_other(path: str) -> bool:
        return is_own_file(path, here=True) or f"{task.run_dir}/{path}" in searched

    for name, folder in places.folders.items():
        if name == CODE:
            yield _Folder(folder, is_newer=is_no_code)
        elif not any(each != folder and folder.startswith(f"{each}/") for each in searched):
            yield _Folder(folder, is_newer=is_new) if name != OUTPUTS else _Folder(folder)
    yield _Folder(task.run_dir, is_other)
    yield _Folder(container_view(task.run_dir))
