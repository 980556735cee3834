"""The agent inside a scheduler's job. `Place` holds its node, the other nodes and the number of this start.

The scheduler starts the same job again after a preemption, a lost node or a requeue. So the task's file is kept, and
each start takes the next attempt number. If the run needs another start, the agent leaves a file for the batch script,
which requeues the job.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

from orchestrator.node.agent.agent import Agent
from orchestrator.node.agent.checkpoints import saved
from orchestrator.node.system.event_log import EventLog, events_in
from orchestrator.node.system.host import gpus_of, nproc_here
from orchestrator.node.system.signals import hold_back_for_good
from orchestrator.outcome import requeue, restart, success
from orchestrator.outcome.restart import Refusal
from orchestrator.outcome.verdict import Cause, Outcome, cause_named
from orchestrator.protocol.allocation import AllocationError
from orchestrator.protocol.events import (
    AgentEnded,
    AgentStarted,
    BatchJob,
    Event,
    GaveUp,
    LostNode,
    Replaced,
    SlurmJob,
    StartingAgain,
    last_of,
    of,
)
from orchestrator.protocol.files import write_json
from orchestrator.protocol.hostlist import in_words
from orchestrator.protocol.layout import TITLES, job_folder, node_folder
from orchestrator.protocol.messages import Again
from orchestrator.protocol.progress import Progress
from orchestrator.protocol.ranks import EXIT_REQUEUE
from orchestrator.protocol.reading import MOST_RECORD, MOST_WORD, read_json, read_object
from orchestrator.protocol.task import NodeTask
from orchestrator.protocol.typed import DamagedError, read, to_json


@dataclass(frozen=True)
class Place:
    """The place of one agent in a start of a scheduler's job."""

    kind: str  # a key of TITLES
    number: str  # the job's
    start: int  # how many times the scheduler has started the job before
    node: int
    hosts: tuple[str, ...]
    launched_from: str = ""  # an address of node 0, beside its name; "" if it is not known
    limit: float | None = None  # seconds, of each start; None if it is not known
    requeues: int | None = None  # how often the scheduler had queued the job again, if the job starts agents by itself
    slots: int | None = None  # of this node; None if they are not known

    @property
    def title(self) -> str:
        """Return the scheduler's name in messages."""
        return TITLES[self.kind]


@dataclass(frozen=True)
class History:
    """The records of earlier starts: node 0's events, and the last start's request for this one."""

    events: tuple[Event, ...]
    word: Again | None

    @property
    def all_starts(self) -> list[Event]:
        """Return the events, and this start as one of them if the last start requested it."""
        word = self.word
        return [*self.events, *([StartingAgain(self.next_attempt, 0, word.cause, word.reason)] if word else [])]

    @property
    def next_attempt(self) -> int:
        """Return the first number that no attempt has had."""
        return restart.last_attempt(self.events, default=-1) + 1

    def last_in_job(self, place: Place) -> SlurmJob | None:
        """Return the last start since Slurm gave a job with spares its nodes; None if this is the first."""
        last = last_of(self.events, SlurmJob)
        if last is None or last.requeues is None or (last.job, last.requeues) != (place.number, place.requeues):
            return None
        return last

    def replaced(self, place: Place) -> list[Replaced]:
        """Return which spares have the places of lost nodes in this start."""
        last = self.last_in_job(place)
        before = list(last.hosts if last is not None and last.hosts else place.hosts)
        gone, spares = (host for host in before if host not in place.hosts), (h for h in place.hosts if h not in before)
        why = {event.host: event.reason for event in of(self.events, LostNode)}
        by_word = self.word.reason if self.word is not None else ""
        return [
            Replaced(place.start, before.index(host), host, by, why.get(host, by_word))
            for host, by in zip(gone, spares)
        ]

    def stalled(self, now: Progress) -> int:
        """Return how many starts in a row, up to this one, have saved nothing newer."""
        return restart.stalled(restart.progress_of_starts(self.events), now)


def placed(task: NodeTask, place: Place) -> NodeTask:
    """Return the task with its hosts and node 0's addresses as the job has them.

    If the plan leaves the number of ranks open and there are no GPUs, it is the number of the node's slots. Node 0 is
    reached by its name, or by the address from which the agents were started, which is node 0's too. Raises
    AllocationError if the job has another number of nodes than the task.
    """
    hosts, launched_from = place.hosts, place.launched_from
    if len(hosts) != task.nnodes:
        raise AllocationError(f"the plan has {task.nnodes} nodes, {place.title} gave {len(hosts)}: {in_words(hosts)}")
    addrs = [hosts[0]] if launched_from.startswith("127.") or not launched_from else [launched_from, hosts[0]]
    if task.nnodes == 1:
        addrs = ["127.0.0.1"]
    nproc = task.nproc if task.nproc is not None or gpus_of(task) else place.slots
    return replace(task, hosts=hosts, leader_addrs=tuple(addrs), start=place.start, nproc=nproc)


def history_of(run_dir: str, place: Place) -> History:
    """Return what earlier starts left in node 0's record, which is on the shared folder whichever host wrote it."""
    events = recorded(run_dir, 0)
    is_now = (isinstance(event, (SlurmJob, BatchJob)) and event.start == place.start for event in events)
    before = next((index for index, found in enumerate(is_now) if found), len(events))  # node 0 may have begun before
    return History(events[:before], read_word(word_path(run_dir, place.kind, place.start - 1)))


def recorded(run_dir: str, node: int) -> tuple[Event, ...]:
    """Return the events of a node's record; empty if there is no record."""
    try:
        return tuple(events_in(f"{node_folder(run_dir, node)}/events.jsonl"))
    except OSError:
        return ()


def events_of(run_dir: str, node: int, start: int) -> list[Event]:
    """Return what a node's agent has recorded in this start, which is its newest; empty if it has not begun."""
    now = restart.newest_start(recorded(run_dir, node))
    opened = (each for each in map(restart.opened_start, now) if each is not None)
    return now if any(each.start == start for each in opened) else []


def word_path(run_dir: str, kind: str, start: int) -> str:
    """Return the file in which a start requests the next start. kind: a key of TITLES."""
    return f"{run_dir}/{job_folder(kind)}/again.{start}"


def continued(task: NodeTask, history: History) -> NodeTask:
    """Return the task as this start has it: its first attempt, and the budgets that are left."""
    left = restart.budget_left(task.retry, history.all_starts)
    return replace(task, attempt=history.next_attempt, retry=left)


def forbidden_start(task: NodeTask, history: History, title: str) -> str:
    """Return why the scheduler should not have started the job again by itself; "" if `retry` allows it."""
    if history.word is not None or os.path.exists(f"{task.run_dir}/cancel.json"):
        return ""
    return requeue.forbidden_start(task.retry, history.events, title)


def has_succeeded(task: NodeTask) -> bool:
    """Tell whether every rank of the newest attempt has exited well, so that no further start is needed.

    The record of every node is on the shared folder. It is read only if rank 0's marker is there.
    """
    marker = read_small_record(f"{task.run_dir}/rank0.done")
    if marker is None:
        return False
    by_node = {node: recorded(task.run_dir, node) for node in range(task.nnodes)}
    return success.has_succeeded(by_node, marker.get("attempt"))


def wants_another(
    task: NodeTask, events: Sequence[Event], code: int, title: str, *, has_whole_limit: bool = True
) -> tuple[Cause, str] | Refusal | None:
    """Return (cause, reason) if the run is to be started again after this agent's end; see `requeue.start_after`.

    A cancelled run is not started again. Neither is a run that has succeeded, because node 0's agent may die before it
    reports the success.
    """
    if os.path.exists(f"{task.run_dir}/cancel.json"):
        return None
    # This start, and all before it, are off the budget already: see `continued`.
    asks = code == EXIT_REQUEUE
    after = requeue.start_after(events, task.retry, title, asks=asks, has_whole_limit=has_whole_limit)
    return None if isinstance(after, tuple) and has_succeeded(task) else after


def run_in_job(run_dir: str, find: Callable[[], Place]) -> int:
    """Run the agent of this node of the job, and return its exit code.

    find: returns the agent's place. It may raise KeyError, ValueError or AllocationError.
    """
    try:
        place = find()
        start, node, title = place.start, place.node, place.title
        path = f"{node_folder(run_dir, node)}/task.json"
        task = placed(NodeTask.from_json(read_json(path, MOST_RECORD, run_dir)), place)
    except (OSError, ValueError, TypeError, KeyError, AllocationError) as error:
        print(f"orch: can't take this node's task from {run_dir}: {error}", file=sys.stderr)
        return 1
    if start and has_succeeded(task):
        print(f"orch: start {start} has nothing to do: all ranks had ended well before", file=sys.stderr)
        return 0
    history = history_of(run_dir, place)
    asked, task = task, continued(task, history)
    log = EventLog(f"{node_folder(run_dir, node)}/events.jsonl", node)
    before = log.sequence
    if node == 0:
        _record_start(log, task, history, place)
    log.close()
    if start and (forbidden := forbidden_start(asked, history, title)):
        return _give_up(log, task, forbidden, Cause.PREEMPTED)
    if history.word and (spent := requeue.overdrawn(asked.retry, history.all_starts, history.word)):
        return _give_up(log, task, spent, cause_named(history.word.cause))
    stalled = history.stalled(saved.progress(task)) if start else 0
    if in_vain := requeue.without_progress(stalled, history.word, title):
        return _give_up(log, task, in_vain, Cause.NO_PROGRESS)
    word = word_path(run_dir, place.kind, start)
    is_first, another = history.last_in_job(place) is None, list[tuple[Cause, str]]()

    def leave_word(agent: Agent, code: int) -> None:
        """Request another start at once: after a node is lost, Slurm sends KILL in KillWait seconds."""
        try:
            found = wants_another(task, _own_events(run_dir, node, before), code, title, has_whole_limit=is_first)
            if found is Refusal.NO_PROGRESS and node == 0:
                reason = _in_vain(place.limit)
                agent.events.write(GaveUp(Outcome.FAILED.value, Cause.NO_PROGRESS.value, reason))
            if isinstance(found, tuple):
                if not os.path.exists(word):  # who wakes up late knows only that it was left
                    write_json(word, to_json(Again(found[0].value, found[1], node), whole=True), durable=False)
                another.append(found)
        except OSError as error:  # the ranks are to be ended all the same
            print(f"orch: {word} can't be written, so nobody starts again: {error}", file=sys.stderr)

    code = asyncio.run(_run(task, leave_word))
    return EXIT_REQUEUE if another else code


async def _run(task: NodeTask, on_outcome: Callable[[Agent, int], None]) -> int:
    """Return the agent's exit code. Then no signal cuts its last words off: Slurm ends all agents after the first."""
    code = await Agent(task, on_outcome).run()
    hold_back_for_good()
    return code


def _record_start(log: EventLog, task: NodeTask, history: History, place: Place) -> None:
    job = task.start, place.number, task.hosts
    log.write(SlurmJob(*job, place.requeues) if place.kind == "slurm" else BatchJob(*job))
    if task.start:
        by_itself = f"{place.title} stopped the job and started it again by itself"
        word = history.word or Again(Cause.PREEMPTED.value, by_itself)
        log.write(StartingAgain(task.attempt, task.start, word.cause, word.reason, **saved.progress(task).to_event()))
        for each in history.replaced(place):
            log.write(each)


def _in_vain(limit: float | None) -> str:
    """Return why a start at the time limit is the last one."""
    said = "its time limit" if limit is None else f"its time limit of {limit / 60:g} min"
    return f"{said} came before it had saved anything new: another start would end in the same way"


def _give_up(log: EventLog, task: NodeTask, reason: str, cause: Cause) -> int:
    """Leave without a start that has no point. Node 0 alone records the reason.

    The other nodes exit with 0: Slurm ends all agents as soon as one fails, and node 0's may not have recorded it yet.
    """
    code = int(task.node_rank == 0)
    log.write(AgentStarted(os.uname().nodename, os.getpid(), start=task.start, nproc=nproc_here(task)))
    if task.node_rank == 0:
        log.write(GaveUp(Outcome.FAILED.value, cause.value, reason))
    log.write(AgentEnded(Outcome.FAILED.value, code))
    return code


def _own_events(run_dir: str, node: int, after: int) -> list[Event]:
    """Return the events that this start has written on this node, whose numbers begin with `after`."""
    return [event for event in recorded(run_dir, node) if event.seq is not None and event.seq >= after]


def read_word(path: str) -> Again | None:
    """Return the request for another start; None if there is no request, or it is damaged."""
    try:
        return read(Again, read_small_record(path))
    except DamagedError:
        return None


def read_small_record(path: str) -> dict[str, Any] | None:
    """Return a JSON object of at most MOST_WORD bytes; None if it is missing or damaged."""
    return read_object(path, MOST_WORD)
