"""The first process of a job with spare nodes. It starts the agents with one srun after another.

The job has more nodes than the run needs, and keeps them if a node is lost. The next srun then uses a spare node
instead of the lost node, so no requeue is needed. The job's first node can't be replaced, because this process and node
0's agent run on it. If the first node is lost, another agent requeues the job (`agent.slurm`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Callable

from orchestrator.node.agent.batch import events_of, read_small_record, read_word, recorded, word_path
from orchestrator.node.agent.slurm import FACTS, START, answers, start_number
from orchestrator.node.system.processes import identify
from orchestrator.outcome.machines import candidates, nodes_to_avoid
from orchestrator.outcome.restart import last_attempt
from orchestrator.outcome.verdict import Cause
from orchestrator.protocol.cancelling import is_cancelled
from orchestrator.protocol.events import AgentEnded, BatchJob, LostNode, of
from orchestrator.protocol.hostlist import expand
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.messages import Again
from orchestrator.protocol.ranks import EXIT_REQUEUE
from orchestrator.protocol.reading import MOST_RECORD, read_json
from orchestrator.protocol.task import NodeTask

LOOK_SECONDS = 1.0  # a shared folder sends no events, so it is polled
SHOWN_SECONDS = 40.0  # NFS may keep the absence of a file in its cache for 30 s
LEAVING_SECONDS = 30.0  # the time for the other agents to end, once it is known that the start has ended


@dataclass(frozen=True)
class Start:
    """One start of the agents: its number, the machine of each node in the job's order, and the machines that this job
    has lost.
    """

    run_dir: str
    number: int
    hosts: tuple[str, ...]
    former: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """Return the path of the file in which an agent requests another start."""
        return word_path(self.run_dir, FACTS.name, self.number)

    def end(self, node: int) -> AgentEnded | None:
        """Return the event by which a node's agent has recorded its end; None if the agent has not ended."""
        return next(iter(of(events_of(self.run_dir, node, self.number), AgentEnded)), None)

    def has_vanished(self) -> bool:
        """Return whether node 0's agent has begun but was killed before it could record its end."""
        return bool(events_of(self.run_dir, 0, self.number)) and self.end(0) is None

    def lost(self) -> set[int]:
        """Return the nodes that were lost in this start, and the nodes whose GPU or driver has failed."""
        events = events_of(self.run_dir, 0, self.number)
        losses = of(events, LostNode)
        lost = {event.lost for event in losses if event.slept is None}  # else node 0 itself was paused
        lost |= nodes_to_avoid(events, last_attempt(events) + 1)
        return {node for node in range(1, len(self.hosts)) if node in lost}

    def has_ended(self) -> bool:
        """Return True if node 0's agent, which runs on this machine, has ended, or if an agent has requested that
        the run is started again.
        """
        agent = read_small_record(f"{node_folder(self.run_dir, 0)}/agent.json") or {}
        if agent.get("start") != self.number or type(agent.get("pid")) is not int:
            return os.path.exists(self.word)
        living = identify(agent["pid"])
        return living is None or living.started != agent.get("started") or os.path.exists(self.word)


def run_starts(run_dir: str, log: str, *srun: str) -> int:
    """Start the agents again and again, until this job can't continue. Return EXIT_REQUEUE if the job must be requeued,
    else an exit code.

    log: the pattern of the log's file name, in srun's syntax. srun: the srun command without the options for its nodes
    and its log.
    """
    try:
        task = NodeTask.from_json(read_json(f"{node_folder(run_dir, 0)}/task.json", MOST_RECORD, run_dir))
        nodes = expand(os.environ.get(FACTS.machines, ""))
    except (OSError, ValueError, TypeError, KeyError) as error:
        print(f"orch: the agents can't be started: {error}", file=sys.stderr)
        return 1
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    start: Start | None = Start(run_dir, first_number(run_dir), tuple(nodes[: task.nnodes]))
    code = 0
    while start is not None and not is_cancelled(run_dir):
        code = _run(start, argv_of(start, log, srun))
        if (word := _request_after(start)) is None:
            return 1 if code == EXIT_REQUEUE else code
        code, start = EXIT_REQUEUE, following(start, nodes, word, answers)
    return code


def _request_after(start: Start) -> Again | None:
    """Return the request for another start; None if there is no request.

    If node 0's agent was killed, the agent of another machine writes the request, and a network file system may show
    the request late.
    """
    late = time.monotonic() + SHOWN_SECONDS
    while (word := read_word(start.word)) is None and start.has_vanished() and time.monotonic() < late:
        if is_cancelled(start.run_dir):  # no start follows a cancel
            break
        signal.sigtimedwait({signal.SIGCHLD}, LOOK_SECONDS)
    return word


def first_number(run_dir: str) -> int:
    """Return the number with which this job counts its first start. The starts of earlier jobs of the run, before a
    requeue, have lower numbers.
    """
    before = of(recorded(run_dir, 0), BatchJob)
    number = max([start_number(os.environ), *(each.start + 1 for each in before)])
    while os.path.exists(word_path(run_dir, FACTS.name, number)):  # in that start, node 0's agent could record nothing
        number += 1
    return number


def argv_of(start: Start, log: str, srun: Sequence[str]) -> list[str]:
    """Return the srun command that starts the agents."""
    size, name = len(start.hosts), f"agent.{log}.{start.number}.%t.log"
    where = [f"--nodes={size}", f"--ntasks={size}", f"--nodelist={','.join(start.hosts)}"]
    return [srun[0], *where, f"--output={start.run_dir}/{FACTS.folder}/{name}", *srun[1:]]


def following(start: Start, nodes: Sequence[str], word: Again, answers: Callable[[str], bool]) -> Start | None:
    """Return the next start in the same job; None if the next start needs a requeue.

    Spare nodes that answer replace lost nodes. Spare nodes that were lost before are tried last.
    """
    if word.cause != Cause.INFRA:  # a preemption or the time limit ends the job
        return None
    lost = [start.hosts[node] for node in sorted(start.lost())]
    kept, former = [host for host in start.hosts if host not in lost], (*start.former, *lost)
    found = list(islice(filter(answers, candidates(nodes, kept, former)), len(lost)))
    if len(found) < len(lost):
        return None
    hosts = tuple(node for node in nodes if node in {*kept, *found})
    return replace(start, number=start.number + 1, hosts=hosts, former=former)


def _run(start: Start, argv: Sequence[str]) -> int:
    """Run the agents of a start until they end, and return the exit code.

    After the loss of a node, srun waits until the node is marked as lost. So srun is killed once all other agents have
    ended, and the exit code of node 0's agent is returned.
    """
    step = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, env={**os.environ, START: str(start.number)},
        preexec_fn=_hear_children,  # noqa: PLW1509 (this process has no threads)
    )  # fmt: skip
    while step.poll() is None and not start.has_ended():
        signal.sigtimedwait({signal.SIGCHLD}, LOOK_SECONDS)
    late = time.monotonic() + LEAVING_SECONDS
    while step.poll() is None:
        lost = start.lost()
        present = [node for node in range(len(start.hosts)) if node not in lost and start.end(node) is None]
        if (lost and not present) or time.monotonic() > late:
            step.send_signal(signal.SIGTERM)  # this kills the rest of the step, so that the next srun can begin at once
            end = start.end(0)
            return 1 if end is None or end.code is None else end.code
        signal.sigtimedwait({signal.SIGCHLD}, LOOK_SECONDS)
    return step.returncode


def _hear_children() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
