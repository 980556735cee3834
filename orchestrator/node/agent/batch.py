"""Runs a node's agent in a scheduler's job. A `Place` holds the agent's node, the other nodes and how often the
scheduler has started this job.

The scheduler starts the same job again after a preemption, a lost node or a requeue. So the file with the node's task
is not deleted after a start, and each start takes the next attempt number. If the run needs another start, the agent
writes a request to a file. The batch script reads this file and requeues the job.
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
from orchestrator.protocol.cancelling import is_cancelled
from orchestrator.protocol.events import (
    AgentEnded,
    AgentStarted,
    BatchJob,
    Event,
    GaveUp,
    LostNode,
    Replaced,
    StartingAgain,
    last_of,
    of,
)
from orchestrator.protocol.files import write_json
from orchestrator.protocol.hostlist import in_words
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.messages import Again
from orchestrator.protocol.progress import Progress
from orchestrator.protocol.ranks import EXIT_REQUEUE
from orchestrator.protocol.reading import MOST_RECORD, MOST_WORD, read_json, read_object
from orchestrator.protocol.schedulers import SCHEDULERS
from orchestrator.protocol.task import NodeTask
from orchestrator.protocol.typed import DamagedError, read, to_json


@dataclass(frozen=True)
class Place:
    """An agent's position in one start of a scheduler's job: its node, the other nodes and the start's number."""

    kind: str  # the scheduler: a key of SCHEDULERS
    number: str  # the job's number
    start: int  # how many times the scheduler has started the job before
    node: int
    hosts: tuple[str, ...]
    launched_from: str = ""  # an address of node 0 in addition to its name; "" if unknown
    limit: float | None = None  # the time limit of each start in seconds; None if unknown
    requeues: int | None = None  # how often the job was requeued; None in a job without spare nodes
    slots: int | None = None  # this node's slots; None if unknown

    @property
    def title(self) -> str:
        """Return the scheduler's name, as messages show it."""
        return SCHEDULERS[self.kind].title


@dataclass(frozen=True)
class History:
    """The records of earlier starts of a scheduler's job: node 0's events, and the request for the present start, if
    the previous start has written one.
    """

    events: tuple[Event, ...]
    word: Again | None

    @property
    def all_starts(self) -> list[Event]:
        """Return the recorded events. If the previous start requested the present start, the list also has an event for
        the present start.
        """
        word = self.word
        return [*self.events, *([StartingAgain(self.next_attempt, 0, word.cause, word.reason)] if word else [])]

    @property
    def next_attempt(self) -> int:
        """Return the number of the next attempt, which no earlier attempt has used."""
        return restart.last_attempt(self.events, default=-1) + 1

    def last_in_job(self, place: Place) -> BatchJob | None:
        """Return the previous start that ran in the present allocation of a job with spare nodes; None if this start is
        the allocation's first.
        """
        last = last_of(self.events, BatchJob)
        if last is None or last.requeues is None or (last.job, last.requeues) != (place.number, place.requeues):
            return None
        return last

    def replaced(self, place: Place) -> list[Replaced]:
        """Return which spare machines replace lost nodes in this start."""
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
        """Return the number of consecutive starts, up to this one, that have saved no newer checkpoint."""
        return restart.stalled(restart.progress_of_starts(self.events), now)


def placed(task: NodeTask, place: Place) -> NodeTask:
    """Return the task, completed with the hosts of the scheduler's job and the addresses of node 0.

    If the plan does not set the number of ranks and the node has no GPU, the node gets one rank per slot. Other nodes
    reach node 0 by its host name, or by the address of the machine that started the agents, because that machine is
    node 0. Raises AllocationError if the job's number of nodes differs from the task's.
    """
    hosts, launched_from = place.hosts, place.launched_from
    if len(hosts) != task.nnodes:
        raise AllocationError(
            f"the plan has {task.nnodes} nodes, but {place.title} gave {len(hosts)}: {in_words(hosts)}"
        )
    addrs = [hosts[0]] if launched_from.startswith("127.") or not launched_from else [launched_from, hosts[0]]
    if task.nnodes == 1:
        addrs = ["127.0.0.1"]
    nproc = task.nproc if task.nproc is not None or gpus_of(task) else place.slots
    return replace(task, hosts=hosts, leader_addrs=tuple(addrs), start=place.start, nproc=nproc)


def history_of(run_dir: str, place: Place) -> History:
    """Load the history of earlier starts from node 0's record of events. Any host can read it in the shared folder."""
    events = recorded(run_dir, 0)
    is_now = (isinstance(event, BatchJob) and event.start == place.start for event in events)
    before = next((index for index, found in enumerate(is_now) if found), len(events))  # node 0 may have begun already
    return History(events[:before], read_word(word_path(run_dir, place.kind, place.start - 1)))


def recorded(run_dir: str, node: int) -> tuple[Event, ...]:
    """Return the events in a node's record; an empty list if the node has no record."""
    try:
        return tuple(events_in(f"{node_folder(run_dir, node)}/events.jsonl"))
    except OSError:
        return ()


def events_of(run_dir: str, node: int, start: int) -> list[Event]:
    """Return the events that a node's agent has recorded in its newest start. If the number of this start is not
    `start`, return an empty list.
    """
    now = restart.newest_start(recorded(run_dir, node))
    opened = (each for each in map(restart.opened_start, now) if each is not None)
    return now if any(each.start == start for each in opened) else []


def word_path(run_dir: str, kind: str, start: int) -> str:
    """Return the path of the file in which a start of the job requests the next start. `kind` is the scheduler, a key
    of SCHEDULERS.
    """
    return f"{run_dir}/{SCHEDULERS[kind].folder}/again.{start}"


def continued(task: NodeTask, history: History) -> NodeTask:
    """Return the task with the number of this start's first attempt and with the number of retries that remain."""
    left = restart.budget_left(task.retry, history.all_starts)
    return replace(task, attempt=history.next_attempt, retry=left)


def forbidden_start(task: NodeTask, history: History, title: str) -> str:
    """Return the reason if the scheduler started the job again by itself although `retry` forbids it. Return "" if this
    start is allowed.
    """
    if history.word is not None or is_cancelled(task.run_dir):
        return ""
    return requeue.forbidden_start(task.retry, history.events, title)


def has_succeeded(task: NodeTask) -> bool:
    """Return whether every rank of the newest attempt has exited with 0, so that no further start is needed.

    The records of all nodes are on the shared folder. They are read only if the marker of rank 0's success exists.
    """
    marker = read_small_record(f"{task.run_dir}/rank0.done")
    if marker is None:
        return False
    by_node = {node: recorded(task.run_dir, node) for node in range(task.nnodes)}
    return success.has_succeeded(by_node, marker.get("attempt"))


def wants_another(
    task: NodeTask, events: Sequence[Event], code: int, title: str, *, has_whole_limit: bool = True
) -> tuple[Cause, str] | Refusal | None:
    """Return (cause, reason) if the run must be started again after this agent's end. Return NO_PROGRESS if the start
    reached its time limit without a new checkpoint, and None in all other cases.

    A cancelled run is not started again. A run that has succeeded is not started again either, even if node 0's agent
    dies before it reports the success.
    """
    if is_cancelled(task.run_dir):
        return None
    # This start and all earlier ones are already subtracted from the budget: see `continued`.
    asks = code == EXIT_REQUEUE
    after = requeue.start_after(events, task.retry, title, asks=asks, has_whole_limit=has_whole_limit)
    return None if isinstance(after, tuple) and has_succeeded(task) else after


def run_in_job(run_dir: str, find: Callable[[], Place]) -> int:
    """Run this node's agent in a scheduler's job, and return the exit code.

    `find` returns the agent's `Place`. It may raise KeyError, ValueError or AllocationError.
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
        """Write the request for another start, if one is needed, as soon as the exit code is certain, because a
        scheduler that has lost a node soon kills the agents of the others.
        """
        try:
            found = wants_another(task, _own_events(run_dir, node, before), code, title, has_whole_limit=is_first)
            if found is Refusal.NO_PROGRESS and node == 0:
                reason = _in_vain(place.limit)
                agent.events.write(GaveUp(Outcome.FAILED.value, Cause.NO_PROGRESS.value, reason))
            if isinstance(found, tuple):
                # Another agent's request is kept: an agent that was suspended knows only that its connection was
                # closed.
                if not os.path.exists(word):
                    write_json(word, to_json(Again(found[0].value, found[1], node), whole=True), durable=False)
                another.append(found)
        except OSError as error:  # the agent must end the ranks nevertheless
            print(f"orch: {word} can't be written, so nobody starts again: {error}", file=sys.stderr)

    code = asyncio.run(_run(task, leave_word))
    return EXIT_REQUEUE if another else code


async def _run(task: NodeTask, on_outcome: Callable[[Agent, int], None]) -> int:
    """Run the agent and return its exit code. After the agent's end, block signals, because the scheduler ends all
    agents once one has ended, and this process must keep its exit code.
    """
    code = await Agent(task, on_outcome).run()
    hold_back_for_good()
    return code


def _record_start(log: EventLog, task: NodeTask, history: History, place: Place) -> None:
    log.write(BatchJob(task.start, place.number, task.hosts, place.requeues))
    if task.start:
        by_itself = f"{place.title} stopped the job and started it again by itself"
        word = history.word or Again(Cause.PREEMPTED.value, by_itself)
        log.write(StartingAgain(task.attempt, task.start, word.cause, word.reason, **saved.progress(task).to_event()))
        for each in history.replaced(place):
            log.write(each)


def _in_vain(limit: float | None) -> str:
    """Return the error message for a start that has reached its time limit without saving anything new."""
    said = "its time limit" if limit is None else f"its time limit of {limit / 60:g} min"
    return f"{said} came before it had saved anything new: another start would end in the same way"


def _give_up(log: EventLog, task: NodeTask, reason: str, cause: Cause) -> int:
    """Exit without starting the ranks, because the start can't succeed. Only node 0 records the reason.

    The other nodes exit with 0, because a scheduler may end all agents once one fails, and node 0 may still be
    recording the reason.
    """
    code = int(task.node_rank == 0)
    log.write(AgentStarted(os.uname().nodename, os.getpid(), start=task.start, nproc=nproc_here(task)))
    if task.node_rank == 0:
        log.write(GaveUp(Outcome.FAILED.value, cause.value, reason))
    log.write(AgentEnded(Outcome.FAILED.value, code))
    return code


def _own_events(run_dir: str, node: int, after: int) -> list[Event]:
    """Return the events that this start has recorded on this node. Their sequence numbers are `after` or higher."""
    return [event for event in recorded(run_dir, node) if event.seq is not None and event.seq >= after]


def read_word(path: str) -> Again | None:
    """Read the request for another start. Return None if no request exists, or if it is damaged."""
    try:
        return read(Again, read_small_record(path))
    except DamagedError:
        return None


def read_small_record(path: str) -> dict[str, Any] | None:
    """Read a JSON object of at most MOST_WORD bytes. Return None if the file is missing or damaged."""
    return read_object(path, MOST_WORD)
