"""The program `python3 node.pyz stacks RUN_DIR NODE RUN BOUNDARY`: prints the stacks of all ranks of this node as JSON.

BOUNDARY is printed first, because a login shell may print text before it. Ranks that orch has started write their
stacks after a signal. Other Python programs are inspected with py-spy.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from orchestrator.node.debug.py_spy import NotSeenError, dump
from orchestrator.node.launcher.stacks import (
    STACK_SIGNAL,
    Asked,
    Thread,
    begins_a_rank,
    ranks_below,
    threads_of,
    would_answer,
)
from orchestrator.node.system.event_log import events_in
from orchestrator.node.system.private import user_in_words
from orchestrator.node.system.processes import (
    Process,
    descendants,
    identify,
    is_stopped,
    marked,
    owner_of,
    pid_inside,
    send_signal,
    variable_of,
)
from orchestrator.protocol.events import InContainer, LauncherStarted, RankExit
from orchestrator.protocol.layout import attempt_folder, node_folder

ANSWER_SECONDS = 3.0
LAUNCHERS = "node.pyz/orchestrator/node/launcher/rank/forked.py"
LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class RankStacks:
    """The stacks of a rank, or the reason why they are unknown."""

    rank: int
    pid: int
    threads: tuple[Thread, ...] = ()
    why_not: str = ""


@dataclass(frozen=True)
class Started:
    """The ranks that the node's launcher has started in its newest attempt, according to the node's events."""

    attempt: int
    pids: Mapping[int, int]  # rank -> pid in the launcher's container
    exits: dict[int, str]  # rank -> how it ended
    in_container: bool


def print_stacks(run_dir: str, node_rank: str, run_id: str, boundary: str) -> int:
    """Print the boundary and the node's stacks in one line. The boundary marks the beginning of the output, because a
    login shell may print text before it.
    """
    found = look(os.path.expanduser(run_dir), int(node_rank), run_id)
    print(boundary, json.dumps([asdict(each) for each in found]), flush=True)
    return 0


def look(run_dir: str, node_rank: int, run_id: str) -> list[RankStacks]:
    """Return the stacks of all ranks of a node; empty if the node has started no ranks."""
    folder = node_folder(run_dir, node_rank)
    started = started_last(f"{folder}/events.jsonl")
    if started is None:
        return []
    own = {pid_inside(each.pid) if started.in_container else each.pid: each for each in marked(run_id, node_rank)}
    signalled: list[_Answer] = []
    found: list[RankStacks] = []
    for rank, pid in started.pids.items():
        process = own.get(pid)
        if rank in started.exits:
            found.append(RankStacks(rank, pid, why_not=f"it has ended: {started.exits[rank]}"))
        elif process is None:
            found.append(RankStacks(rank, pid, why_not=_why_hidden(pid, started)))
        elif answering := _who_answers(rank, process):
            attempt = attempt_folder(folder, started.attempt)
            signalled += [
                _Answer.ask(number, each, f"{attempt}/stacks_{number}.txt") for number, each in answering.items()
            ]
        else:
            found += _foreign(rank, process)
    end = time.monotonic() + ANSWER_SECONDS
    for answer in signalled:
        threads = answer.wait(end)
        found += [RankStacks(answer.rank, answer.process.pid, threads)] if threads else _foreign(
            answer.rank, answer.process
        )  # fmt: skip
    return sorted(found, key=lambda each: each.rank)


def _who_answers(rank: int, process: Process) -> dict[int, Process]:
    """Return a dict from rank to the process that gets the signal to write its stacks.

    If `process` is another launcher, such as torchrun, the dict has the main processes of that launcher's ranks. Return
    {} if one of these processes has no handler for the signal.
    """
    if would_answer(process.pid):
        return {rank: process}
    below = {number: identify(pid) for number, pid in ranks_below(process.pid).items()}
    answering = {number: each for number, each in below.items() if each is not None and would_answer(each.pid)}
    return answering if len(answering) == len(below) else {}


def started_last(path: str) -> Started | None:
    """Return the ranks of the newest attempt in the node's events, or None if no launcher has started."""
    newest, in_container = None, False
    try:
        events = events_in(path)
    except FileNotFoundError:
        return None
    for event in events:
        if isinstance(event, InContainer):
            in_container = True
        elif isinstance(event, LauncherStarted):
            newest = Started(event.attempt, event.pids, {}, in_container)
        elif isinstance(event, RankExit) and newest is not None and event.attempt == newest.attempt:
            newest.exits[event.rank] = event.how
    return newest


def _why_hidden(pid: int, started: Started) -> str:
    """Return the reason why this user may not inspect a rank's process."""
    if started.in_container:
        return "its container runs as another user (container.user): only that user or root may look at its processes"
    owner = owner_of(pid)
    if owner is None:
        return "it has just ended"
    return f"it runs as {user_in_words(owner)}: only that user or root may look at it"


@dataclass(frozen=True)
class _Answer:
    """The answer that is expected from a rank, which was sent the signal to write its stacks."""

    rank: int
    process: Process
    asked: Asked

    @staticmethod
    def ask(rank: int, process: Process, path: str) -> _Answer:
        """Send the rank the signal to write its stacks."""
        answer = _Answer(rank, process, Asked.before(process.pid, path))
        send_signal(process, STACK_SIGNAL)
        return answer

    def wait(self, end: float) -> tuple[Thread, ...]:
        """Return the threads once the rank has written all of them, or the threads that it has written by time
        `end`.
        """
        while not (text := self.asked.answer()) and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)  # a signal handler writes the dump, and sends no signal when it is done
        return tuple(map(_own_frames, threads_of(text or self.asked.so_far())))


def _own_frames(thread: Thread) -> Thread:
    """Return the thread with only the frames of the user's program. The frames of orch's launcher, which called the
    program, are removed.
    """
    ours = (number for number, frame in enumerate(thread.frames) if frame.file.endswith(LAUNCHERS))
    return replace(thread, frames=thread.frames[: next(ours, len(thread.frames))])


def _foreign(rank: int, process: Process) -> list[RankStacks]:
    """Return the stacks of ranks that another launcher or a command has started, as py-spy reads them."""
    if is_stopped(process.pid):
        return [RankStacks(rank, process.pid, why_not="it is stopped (SIGSTOP)")]
    family = [process, *descendants(process.pid)]
    ranks = [each for each in family if begins_a_rank(each.pid)]
    found = []
    for each in ranks or [next(filter(_is_python, family), process)]:
        number = variable_of(each.pid, "RANK") if ranks else ""
        own = int(number) if number.isdigit() else rank
        try:
            found.append(RankStacks(own, each.pid, dump(each.pid)))
        except NotSeenError as error:
            found.append(RankStacks(own, each.pid, why_not=str(error)))
    return found


def _is_python(process: Process) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{process.pid}/exe"))
    except OSError:
        return False
