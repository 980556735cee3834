"""The stacks of ranks that stand still: asked for by a signal that faulthandler answers, even while the GIL is held."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from typing import Any

STACK_SIGNAL = signal.SIGRTMIN + 7  # nobody's default; SIGUSR1 and 2 belong to schedulers and users
SETTLE_SECONDS = 1.0
_THREAD = re.compile(r"^(Current thread|Thread) .*most recent call first\):$", re.MULTILINE)
_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_to_all|broadcast|barrier|distributed_c10d|backward|\brecv\b|\bwait\b"
)
MAX_TEXT = 200_000


def answer_with_stacks(path: str) -> None:
    """Let this process write the stacks of all its threads to the file whenever it is asked."""
    file = open(path, "ab", buffering=0)  # noqa: SIM115 (as long as the process lives)
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=True, chain=False)


def ask(pid: int) -> None:
    """Ask a process for its stacks, if it would answer: the signal would end one that doesn't."""
    if _catches(pid):
        os.kill(pid, STACK_SIGNAL)


def _catches(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            caught = [line.split()[1] for line in status if line.startswith("SigCgt:")]
    except OSError:
        return False
    return bool(caught) and bool(int(caught[0], 16) >> (STACK_SIGNAL - 1) & 1)


def describe(pid: int, path: str) -> dict[str, Any]:
    """Return a process's state, whether its main thread waits in a collective (None: unknown), where, its frames."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            state = stat.read().rpartition(")")[2].split()[0]
    except OSError:
        state = "?"
    frames = main_frames(_tail(path))
    in_collective = bool(_COLLECTIVE.search("\n".join(frames[:4]))) if frames else None
    where = next((frame for frame in frames if "/torch/" not in frame), None)
    return {"state": state, "in_collective": in_collective, "where": where, "frames": frames[:12]}


def main_frames(text: str) -> list[str]:
    """Return the main thread's frames of the newest dump in the text, innermost first."""
    heads = list(_THREAD.finditer(text))
    current = [head for head in heads if head[1] == "Current thread"]
    if not heads:
        return []
    head = (current or heads)[-1]
    lines = text[head.end() :].lstrip("\n").splitlines()
    frames = []
    for line in lines:
        if not line.startswith("  File"):
            break
        frames.append(line.strip())
    return frames


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_TEXT))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
