"""Requests the stacks of ranks with a signal. faulthandler answers the signal even while a thread holds the GIL."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
from dataclasses import dataclass
from typing import Any

from orchestrator.node.system.processes import descendants, parent_of, state_of, status_of, variable_of
from orchestrator.protocol.reading import open_own, read_part

# The signal has no default use. SIGUSR1 and SIGUSR2 belong to schedulers and users. macOS has no ranks.
if sys.platform == "darwin":
    STACK_SIGNAL = signal.SIGUSR1
else:
    STACK_SIGNAL = signal.SIGRTMIN + 7
SETTLE_SECONDS = 1.0
PATIENCE_SECONDS = 6.0  # seconds to wait for answers; the leader waits for 8 s
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')
_THREAD = re.compile(r"^(Current thread|Thread) .*most recent call first\):$", re.MULTILINE)
_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_to_all|broadcast|barrier|distributed_c10d|backward|\brecv\b|\bwait\b"
)
_OWN = "/orchestrator/node/launcher/rank/"  # rendezvous.py and patience.py wrap torch's functions
MAX_TEXT = 200_000


@dataclass(frozen=True)
class Frame:
    """A frame of a thread. `line` is 0 if the line is unknown."""

    function: str
    file: str
    line: int


@dataclass(frozen=True)
class Thread:
    """A thread of a process, with its innermost frame first."""

    is_main: bool
    frames: tuple[Frame, ...]


def answer_with_stacks(path: str) -> None:
    """Make this process write the stacks of all its threads to the file each time it gets the signal."""
    file = open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)  # noqa: SIM115 (stays open)
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=True, chain=False)


@dataclass(frozen=True)
class Asked:
    """A process that was sent the signal to write its stacks. The stacks are appended to the file `path`."""

    pid: int
    path: str
    offset: int
    threads: tuple[str, ...]  # the threads, one of which will handle the signal

    @staticmethod
    def before(pid: int, path: str) -> Asked:
        """Record the file's size and the process's threads before the signal is sent. `answer` needs both to
        recognize a complete answer.
        """
        try:
            offset = os.path.getsize(path)
        except OSError:
            offset = 0
        return Asked(pid, path, offset, tuple({str(pid), *_free_threads(pid)}))

    def answer(self) -> str:
        """Return the dump once it is complete. Until then, return "".

        The thread that writes the dump gives no sign when it has finished. But the file grows when the thread begins,
        and from then on the thread blocks the signal until it has finished.
        """
        if not self.so_far() or not set(self.threads) <= {*_free_threads(self.pid)} | self._ended_threads():
            return ""
        return self.so_far()

    def so_far(self) -> str:
        """Return the text that was written so far; "" if the file was removed with its run."""
        return _text(self.path, self.offset)

    def _ended_threads(self) -> set[str]:
        return {thread for thread in self.threads if not os.path.exists(f"/proc/{self.pid}/task/{thread}")}


def _free_threads(pid: int) -> list[str]:
    """Return the threads of a process that do not block the signal."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [each for each in threads if not _has_signal(int(each), "SigBlk")]


def ask(pid: int, path: str) -> Asked | None:
    """Request a process's stacks if it has a handler for the signal. Without a handler, the signal would end the
    process.
    """
    if not would_answer(pid):
        return None
    asked = Asked.before(pid, path)
    try:
        os.kill(pid, STACK_SIGNAL)
    except ProcessLookupError:  # a rank of another launcher, such as torchrun, has just ended
        return None
    return asked


def ranks_below(pid: int) -> dict[int, int]:
    """Return a dict from each rank to the pid of its main process, for ranks that another launcher, such as torchrun,
    has started below the process `pid`.
    """
    below = {variable_of(each.pid, "RANK"): each.pid for each in descendants(pid) if begins_a_rank(each.pid)}
    return {int(rank): number for rank, number in below.items() if rank.isdigit()}


def begins_a_rank(pid: int) -> bool:
    """Return whether a process is a rank's main process. The children of a rank inherit its variable RANK, so a process
    is the main process if its parent's RANK differs.
    """
    rank = variable_of(pid, "RANK")
    return rank != "" and variable_of(parent_of(pid), "RANK") != rank


def would_answer(pid: int) -> bool:
    """Return whether a process has a handler for the signal, according to /proc."""
    return _has_signal(pid, "SigCgt")


def _has_signal(pid: int, mask: str) -> bool:
    """Return whether the signal is in a set of a process or thread, such as SigCgt, the signals with a handler."""
    return bool(int(status_of(pid, mask) or "0", 16) >> (STACK_SIGNAL - 1) & 1)


def describe(pid: int, path: str) -> dict[str, Any]:
    """Return a process's state, the line at which it is, its frames, and whether its main thread waits in a collective
    (None if unknown).
    """
    frames = main_frames(_text(path, -MAX_TEXT))
    in_collective = bool(_COLLECTIVE.search("\n".join(frames[:4]))) if frames else None
    where = next((frame for frame in frames if "/torch/" not in frame and _OWN not in frame), None)
    return {"state": state_of(pid), "in_collective": in_collective, "where": where, "frames": frames[:12]}


def main_frames(text: str) -> list[str]:
    """Return the main thread's frames in the newest dump of the text, with the innermost frame first."""
    heads = list(_THREAD.finditer(text))
    current = [head for head in heads if head[1] == "Current thread"]
    return _lines_of(text, (current or heads)[-1]) if heads else []


def threads_of(text: str) -> list[Thread]:
    """Return the threads in one dump. Python prints the main thread last."""
    heads = list(_THREAD.finditer(text))
    stacks = [tuple(map(_frame, _lines_of(text, head))) for head in heads]
    return [Thread(number == len(stacks), frames) for number, frames in enumerate(stacks, start=1)]


def _lines_of(text: str, head: re.Match[str]) -> list[str]:
    frames = []
    for line in text[head.end() :].lstrip("\n").splitlines():
        if not line.startswith("  File"):
            break
        frames.append(line.strip())
    return frames


def _frame(line: str) -> Frame:
    found = _FRAME.fullmatch(f"  {line}")
    return Frame(found[3], found[1], int(found[2]) if found[2].isdigit() else 0) if found else Frame(line, "", 0)


def _text(path: str, offset: int) -> str:
    try:
        return read_part(path, offset, MAX_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""
