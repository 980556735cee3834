"""The agent inside a Slurm job. It finds its node, the other nodes and the number of this start.

Slurm starts the same task again after a preemption, a lost node or a requeue. So the task's file is kept, and each
start takes the next attempt number. If the run needs another start, the agent leaves a file for the batch script,
which requeues the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

from orchestrator.node.agent.agent import Agent
from orchestrator.node.agent.checkpoints import saved
from orchestrator.node.system.event_log import EventLog
from orchestrator.node.system.host import nproc_here
from orchestrator.node.system.signals import hold_back_for_good
from orchestrator.protocol import restart
from orchestrator.protocol.events import AgentEnded, AgentStarted, EventKind, GaveUp, SlurmJob, StartingAgain
from orchestrator.protocol.exits import successful_attempt
from orchestrator.protocol.files import write_json
from orchestrator.protocol.hostlist import expand, in_words
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.ranks import EXIT_REQUEUE
from orchestrator.protocol.reading import MOST_LINES, MOST_RECORD, MOST_WORD, read_json, read_regular
from orchestrator.protocol.restart import Progress, Refusal, Restarter
from orchestrator.protocol.task import NodeTask

PREEMPTION_SECONDS = 5.0  # between the two signals of a preemption
ASKED_TO_STOP = {"preempted": "Slurm took its nodes away (preempted)", "timeout": "its time limit was near"}

Event = Mapping[str, Any]


class SlurmError(Exception):
    """This process is not what it was taken for: a task of a Slurm job with this run's nodes."""


@dataclass(frozen=True)
class History:
    """What the starts before this one have left: node 0's events, and the word that the last one left."""

    events: tuple[Event, ...]
    word: Event | None

    @property
    def all_starts(self) -> list[Event]:
        """Return the events, and as one of them what the last start asked for: this one."""
        return [*self.events, *([{**self.word, "kind": EventKind.RELAUNCH}] if self.word else [])]

    @property
    def next_attempt(self) -> int:
        """Return the first number that no attempt has had."""
        attempts = [event["attempt"] for event in self.events if type(event.get("attempt")) is int]
        return max(attempts, default=-1) + 1

    def stalled(self, now: restart.Progress) -> int:
        """Return how many starts in a row, up to this one, have saved nothing newer."""
        return restart.stalled(restart.progress_of_starts(self.events), now)


def expand_nodes(text: str) -> list[str]:
    """Return the host names in Slurm's list of nodes; SlurmError where it can't be read: it never becomes one host."""
    try:
        return expand(text)
    except ValueError as error:
        raise SlurmError(f"Slurm's list of nodes can't be read: {error}") from None


def start_number(environ: Mapping[str, str]) -> int:
    """Return how many times Slurm has started this job before."""
    return int(environ.get("SLURM_RESTART_COUNT") or 0)


def placed(task: NodeTask, environ: Mapping[str, str]) -> NodeTask:
    """Return the task with its hosts and node 0's addresses as the allocation has them; SlurmError if they don't fit.

    Node 0 is reached by its name, or by the address from which srun was started, which is node 0's too.
    """
    hosts = expand_nodes(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "")
    if len(hosts) != task.nnodes:
        raise SlurmError(f"the plan has {task.nnodes} nodes, Slurm gave {len(hosts)}: {in_words(hosts)}")
    launched_from = environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    addrs = [hosts[0]] if launched_from.startswith("127.") or not launched_from else [launched_from, hosts[0]]
    if task.nnodes == 1:
        addrs = ["127.0.0.1"]
    return replace(task, hosts=tuple(hosts), leader_addrs=tuple(addrs), start=start_number(environ))


def history_of(run_dir: str, start: int) -> History:
    """Return what earlier starts left in node 0's record, which is on the shared folder whichever host wrote it."""
    events = read_events(f"{node_folder(run_dir, 0)}/events.jsonl", run_dir)
    is_now = (event.get("kind") == EventKind.SLURM_JOB and event.get("start") == start for event in events)
    before = next((index for index, found in enumerate(is_now) if found), len(events))  # node 0 may have begun before
    return History(events[:before], _read(word_path(run_dir, start - 1)))


def read_events(path: str, run_dir: str) -> tuple[Event, ...]:
    """Return the events of a node's record without lines that a crash cut off; empty if there is no record."""
    try:
        return tuple(_events_in(path, run_dir))
    except OSError:
        return ()


def word_path(run_dir: str, start: int) -> str:
    """Return where a start asks for the next one; the batch script looks for this very name."""
    return f"{run_dir}/slurm/again.{start}"


def continued(task: NodeTask, history: History) -> NodeTask:
    """Return the task as this start has it: its first attempt, and the budgets that are left."""
    left = restart.budget_left(task.retry, history.all_starts)
    return replace(task, attempt=history.next_attempt, retry=left)


def forbidden_start(task: NodeTask, history: History) -> str:
    """Return why Slurm should not have started the job again by itself; empty if the job's `retry` allows it."""
    if history.word is not None or "preempted" not in task.retry or os.path.exists(f"{task.run_dir}/cancel.json"):
        return ""
    used = restart.times_used(history.events, "preempted")
    if restart.refusal(Restarter.SLURM, "preempted", task.retry, used) is not Refusal.BUDGET_SPENT:
        return ""
    return (
        "Slurm stopped the job and started it again by itself; this start ended at once, because retry.preempted is "
        f"{task.retry.get('preempted', 0)}"
    )


def has_succeeded(task: NodeTask) -> bool:
    """Tell whether every rank of the newest attempt has exited well, so that no further start is needed.

    The record of every node is on the shared folder. It is read only if rank 0's marker is there.
    """
    marker = _read(f"{task.run_dir}/rank0.done")
    if marker is None:
        return False
    by_node = {
        node: read_events(f"{node_folder(task.run_dir, node)}/events.jsonl", task.run_dir)
        for node in range(task.nnodes)
    }
    attempt = successful_attempt(by_node, rank0_done=True)
    return attempt is not None and attempt == marker.get("attempt")


def wants_another(task: NodeTask, events: tuple[Event, ...], code: int) -> tuple[str, str] | Refusal | None:
    """Return (cause, reason) when the run is to be started again after this agent's end; else None.

    NO_PROGRESS where it ends at its time limit and has gained nothing by then.

    Of several nodes that say so, the first counts: the leader, or where node 0 was lost, whoever noticed.
    """
    began = any(event.get("kind") == "started" for event in events)
    ends = [event for event in events if event.get("kind") in ("gang_ended", "gave_up")]
    if not ends or os.path.exists(f"{task.run_dir}/cancel.json"):
        return None
    cause = str(ends[-1].get("cause"))
    if cause == "preempted" and _is_near_limit(events):
        cause = "timeout"
    # This start, and all before it, are off the budget already: see `continued`.
    used = restart.times_used([event for event in events if event.get("kind") == EventKind.RESTART], cause)
    begun = next(iter(restart.progress_of_starts(events)), Progress())
    stalled = restart.stalled([begun], restart.progress_of(ends[-1])) if began else 0
    refusal = restart.refusal(Restarter.SLURM, cause, task.retry, used, stalled)
    if refusal is not None or not (began or code == EXIT_REQUEUE):
        return refusal if refusal is Refusal.NO_PROGRESS else None
    if has_succeeded(task):  # node 0's agent died before it could report the success
        return None
    return cause, str(ends[-1].get("reason") or ASKED_TO_STOP.get(cause, ""))


def _is_near_limit(events: Sequence[Event]) -> bool:
    """Tell whether this start was asked to stop because of its time limit.

    The batch script asks Slurm for SIGUSR2 before the limit. Slurm can send SIGUSR2 up to a minute early, so a
    preemption may come at the same moment. Then SIGTERM follows at once. Before a time limit it comes much later.
    """
    warned, stopped = (_time_of(events, name) for name in ("SIGUSR2", "SIGTERM"))
    return warned is not None and not (stopped is not None and 0 <= stopped - warned < PREEMPTION_SECONDS)


def _time_of(events: Sequence[Event], signal: str) -> float | None:
    """Return when the agent got a signal first; 0 if its event has no time, and None if it got no such signal."""
    found = next((event for event in events if event.get("name") == signal), None)
    at = found and found.get("time")
    return None if found is None else float(at) if isinstance(at, (int, float)) else 0.0


def run_slurm_agent(run_dir: str) -> int:
    """Run the agent of this node of the job, and return its exit code."""
    environ = os.environ
    if run_dir.endswith(".%a"):  # a task of an array: which of its runs, Slurm tells it
        run_dir = f"{run_dir[:-2]}{environ.get('SLURM_ARRAY_TASK_ID')}"
    try:
        start, node = start_number(environ), int(environ["SLURM_NODEID"])
        path = f"{node_folder(run_dir, node)}/task.json"
        task = placed(NodeTask.from_json(read_json(path, MOST_RECORD, run_dir)), environ)
    except (OSError, ValueError, TypeError, KeyError, SlurmError) as error:
        print(f"orch: can't take this node's task from {run_dir}: {error}", file=sys.stderr)
        return 1
    if start and has_succeeded(task):
        print(f"orch: start {start} has nothing to do: all ranks had ended well before", file=sys.stderr)
        return 0
    history = history_of(run_dir, start)
    asked, task = task, continued(task, history)
    log = EventLog(f"{node_folder(run_dir, node)}/events.jsonl", node)
    before = log.sequence
    if node == 0:
        _record_start(log, task, history, environ)
    log.close()
    if start and (forbidden := forbidden_start(asked, history)):
        return _give_up(log, task, forbidden, "preempted")
    stalled = history.stalled(saved.progress(task)) if start else 0
    if stalled >= restart.WITHOUT_PROGRESS:
        return _give_up(log, task, _without_progress(stalled, history))
    another: list[tuple[str, str]] = []

    def leave_word(agent: Agent, code: int) -> None:
        """Ask for another start at once: where a node was lost, Slurm's KILL is KillWait away."""
        try:
            found = wants_another(task, _own_events(log, before), code)
            if found is Refusal.NO_PROGRESS and node == 0:
                agent.events.write(GaveUp("failed", "no_progress", _in_vain(environ)))
            if isinstance(found, tuple):
                if not os.path.exists(word_path(run_dir, start)):  # who wakes up late knows only that it was left
                    word = {"cause": found[0], "reason": found[1], "node": node}
                    write_json(word_path(run_dir, start), word, durable=False)
                another.append(found)
        except OSError as error:  # the ranks are to be ended all the same
            print(
                f"orch: {word_path(run_dir, start)} can't be written, so nobody starts again: {error}", file=sys.stderr
            )

    code = asyncio.run(_run(task, leave_word))
    return EXIT_REQUEUE if another else code


async def _run(task: NodeTask, on_outcome: Callable[[Agent, int], None]) -> int:
    """Return the agent's exit code. Then no signal cuts its last words off: srun ends all when the first has left."""
    code = await Agent(task, on_outcome).run()
    hold_back_for_good()
    return code


def _record_start(log: EventLog, task: NodeTask, history: History, environ: Mapping[str, str]) -> None:
    log.write(SlurmJob(task.start, environ.get("SLURM_JOB_ID"), task.hosts))
    if task.start:
        word = history.word or {"cause": "preempted", "reason": "Slurm stopped the job and started it again by itself"}
        cause, reason = str(word.get("cause")), str(word.get("reason") or "")
        log.write(StartingAgain(task.attempt, task.start, cause, reason, **saved.progress(task).to_event()))


def _without_progress(stalled: int, history: History) -> str:
    if (history.word or {}).get("cause") == "timeout":
        return f"gave up: {stalled} starts in a row hit the time limit without saving a new checkpoint"
    return f"{stalled} starts in a row ended without a new checkpoint; {_last(history)}"


def _in_vain(environ: Mapping[str, str]) -> str:
    """Return why a start at the time limit is the last one; newer versions of Slurm tell how long the limit is."""
    try:
        seconds = int(environ["SLURM_JOB_END_TIME"]) - int(environ["SLURM_JOB_START_TIME"])
        limit = f"its time limit of {seconds / 60:g} min"
    except (KeyError, ValueError):
        limit = "its time limit"
    return f"{limit} came before it had saved anything new: another start would end in the same way"


def _last(history: History) -> str:
    reason = (history.word or {}).get("reason")
    return f"the last: {reason}" if reason else "the last was ended by Slurm"


def _give_up(log: EventLog, task: NodeTask, reason: str, cause: str = "no_progress") -> int:
    """Leave without a start that has no point. Node 0 alone records the reason.

    The other nodes exit with 0: srun ends all agents as soon as one fails, and node 0's may not have recorded it yet.
    """
    code = int(task.node_rank == 0)
    log.write(AgentStarted(os.uname().nodename, os.getpid(), start=task.start, nproc=nproc_here(task)))
    if task.node_rank == 0:
        log.write(GaveUp("failed", cause, reason))
    log.write(AgentEnded("failed", code))
    return code


def _own_events(log: EventLog, after: int) -> tuple[Event, ...]:
    """Return what this start has written of this node: the lines after that number."""
    found = read_events(log.path, log.path.rpartition("/nodes/")[0])
    return tuple(event for event in found if event.get("seq", -1) >= after)


def _events_in(path: str, run_dir: str) -> Iterator[Event]:
    """Return a node's events without lines that a crash cut off."""
    for line in read_regular(path, MOST_LINES, run_dir).splitlines():
        with contextlib.suppress(ValueError):
            event = parse_json(line)
            if isinstance(event, dict):
                yield event


def _read(path: str) -> Event | None:
    try:
        data = read_json(path, MOST_WORD)
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
