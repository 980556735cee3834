"""The stacks of ranks: asked for by a signal that faulthandler answers, even while the GIL is held."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from dataclasses import dataclass
from typing import Any

from orchestrator.node.system.processes import descendants, parent_of, state_of, variable_of
from orchestrator.protocol.files import open_own
from orchestrator.protocol.reading import read_part

STACK_SIGNAL = signal.SIGRTMIN + 7  # nobody's default; SIGUSR1 and 2 belong to schedulers and users
SETTLE_SECONDS = 1.0
PATIENCE_SECONDS = 6.0  # with ranks that have not answered: the leader waits for 8
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)')
_THREAD = re.compile(r"^(Current thread|Thread) .*most recent call first\):$", re.MULTILINE)
_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_to_all|broadcast|barrier|distributed_c10d|backward|\brecv\b|\bwait\b"
)
_OWN = "/orchestrator/node/launcher/rank/"  # own_store.py and patience.py wrap torch's functions
MAX_TEXT = 200_000


@dataclass(frozen=True)
class Frame:
    """A line of a program that a thread has come to; `line` is 0 where it is not known."""

    function: str
    file: str
    line: int


@dataclass(frozen=True)
class Thread:
    """A thread of a process, innermost frame first."""

    is_main: bool
    frames: tuple[Frame, ...]


def answer_with_stacks(path: str) -> None:
    """Let this process write the stacks of all its threads to the file whenever it is asked."""
    file = open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)  # noqa: SIM115 (stays open)
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=True, chain=False)


@dataclass(frozen=True)
class Asked:
    """A process that is asked for its stacks; they come into a file, behind what is there already."""

    pid: int
    path: str
    offset: int
    threads: tuple[str, ...]  # those that may answer

    @staticmethod
    def before(pid: int, path: str) -> Asked:
        """Note by what the answer will be known, before the signal is sent."""
        try:
            offset = os.path.getsize(path)
        except OSError:
            offset = 0
        return Asked(pid, path, offset, tuple({str(pid), *_free_threads(pid)}))

    def answer(self) -> str:
        """Return the dump once it is whole, and before that an empty text.

        Its writer tells nobody that it has ended; but the file has grown once it has begun, and from then on the signal
        is held back in the thread that writes, until it has ended.
        """
        if not self.so_far() or not set(self.threads) <= {*_free_threads(self.pid)} | self._ended_threads():
            return ""
        return self.so_far()

    def so_far(self) -> str:
        """Return what has come; nothing where the file is gone with its run."""
        try:
            return read_part(self.path, self.offset, MAX_TEXT).decode("utf-8", "replace")
        except OSError:
            return ""

    def _ended_threads(self) -> set[str]:
        return {thread for thread in self.threads if not os.path.exists(f"/proc/{self.pid}/task/{thread}")}


def _free_threads(pid: int) -> list[str]:
    """Return the threads of a process that do not hold the signal back."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [each for each in threads if not _has_signal(f"/proc/{pid}/task/{each}/status", "SigBlk:")]


def ask(pid: int, path: str) -> Asked | None:
    """Ask a process for its stacks, if it would answer: the signal would end one that doesn't."""
    if not would_answer(pid):
        return None
    asked = Asked.before(pid, path)
    try:
        os.kill(pid, STACK_SIGNAL)
    except ProcessLookupError:  # of another launcher's rank, which has just ended
        return None
    return asked


def ranks_below(pid: int) -> dict[int, int]:
    """Return the processes with which another launcher begins its ranks, by rank."""
    below = {variable_of(each.pid, "RANK"): each.pid for each in descendants(pid) if begins_a_rank(each.pid)}
    return {int(rank): number for rank, number in below.items() if rank.isdigit()}


def begins_a_rank(pid: int) -> bool:
    """Tell whether a process is the first of a rank, as torchrun starts it: its children have its variables too."""
    rank = variable_of(pid, "RANK")
    return rank != "" and variable_of(parent_of(pid), "RANK") != rank


def would_answer(pid: int) -> bool:
    """Tell whether a process has a handler for the signal, by its kernel's word."""
    return _has_signal(f"/proc/{pid}/status", "SigCgt:")


def _has_signal(path: str, mask: str) -> bool:
    """Tell whether the signal is in a set of which a status file of the kernel's tells."""
    try:
        with open(path, encoding="ascii", errors="replace") as status:
            found = [line.split()[1] for line in status if line.startswith(mask)]
    except OSError:
        return False
    return bool(found) and bool(int(found[0], 16) >> (STACK_SIGNAL - 1) & 1)


def describe(pid: int, path: str) -> dict[str, Any]:
    """Return a process's state, whether its main thread waits in a collective (None: unknown), where, its frames."""
    frames = main_frames(_tail(path))
    in_collective = bool(_COLLECTIVE.search("\n".join(frames[:4]))) if frames else None
    where = next((frame for frame in frames if "/torch/" not in frame and _OWN not in frame), None)
    return {"state": state_of(pid), "in_collective": in_collective, "where": where, "frames": frames[:12]}


def main_frames(text: str) -> list[str]:
    """Return the main thread's frames of the newest dump in the text, innermost first."""
    heads = list(_THREAD.finditer(text))
    current = [head for head in heads if head[1] == "Current thread"]
    return _lines_of(text, (current or heads)[-1]) if heads else []


def threads_of(text: str) -> list[Thread]:
    """Return the threads of a text that is one dump; the main thread is the one that Python lists last."""
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


def _tail(path: str) -> str:
    try:
        return read_part(path, -MAX_TEXT, MAX_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""
