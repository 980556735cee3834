"""The first process of a scheduler's job: it starts the agents of all nodes, warns them of the time limit and ends
them.

The batch script starts this process on the job's first machine. This process runs node 0's agent as a child. It starts
each other agent by the scheduler's remote command, so that the scheduler accounts for all agents and can end them. Node
0's agent leads the gang, so signals are sent only to node 0's agent. When node 0's agent has ended, the other agents
get a limited time to end.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from orchestrator.node.agent.batch import Place, run_in_job, word_path
from orchestrator.protocol.allocation import AllocationError, read_allocation
from orchestrator.protocol.cancelling import is_cancelled
from orchestrator.protocol.hostlist import in_words
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.ranks import EXIT_REQUEUE
from orchestrator.protocol.reading import MOST_RECORD, read_json, read_regular
from orchestrator.protocol.schedulers import SCHEDULERS, STOP_SIGNALS, warning
from orchestrator.protocol.task import NodeTask

LOOK_SECONDS = 2.0
LEAVING_SECONDS = 30.0  # the time for the other agents to end after node 0's agent
WATCHED = {signal.SIGCHLD, *STOP_SIGNALS}


@dataclass
class JobAgents:
    """The agents of one start. For each node, this holds a local process: the agent itself, or the command that waits
    for the agent on another machine.
    """

    by_node: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, node: int, argv: Sequence[str], log: BinaryIO) -> None:
        """Start a node's agent, with its output in `log`."""
        self.by_node[node] = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            preexec_fn=_hear_signals,  # noqa: PLW1509 (this process has no threads)
        )  # fmt: skip

    def living(self) -> list[int]:
        """Return the nodes whose agents still run."""
        return [node for node, process in self.by_node.items() if process.poll() is None]

    def kill(self) -> None:
        """Kill all agents that were started."""
        for process in self.by_node.values():
            process.kill()

    def stop_leader(self, number: int) -> None:
        """Send a signal to node 0's agent if the agent still runs."""
        if self.by_node[0].poll() is None:
            self.by_node[0].send_signal(number)

    def code(self) -> int:
        """Return 0 if all agents exited with 0, else the first exit code that is not 0. If signal N ended an agent, its
        code is 128 + N.
        """
        codes = [process.returncode for process in self.by_node.values()]
        return next((code if code > 0 else 128 - code for code in codes if code), 0)


def run_job(kind: str, run_dir: str, number: str, start: str, limit: str) -> int:
    """Run a start of the job to its end. Return EXIT_REQUEUE if the job must be started again, else an exit code.

    limit: the job's time limit in seconds, or "-" if it has none.
    """
    try:
        hosts, slots = hosts_of(kind, os.environ)
        task = NodeTask.from_json(read_json(f"{node_folder(run_dir, 0)}/task.json", MOST_RECORD, run_dir))
    except (AllocationError, OSError, ValueError, TypeError, KeyError) as error:
        print(f"orch: the job's agents can't be started: {error}", file=sys.stderr)
        return 1
    if task.program.own_ranks:  # a batch file as it is: it starts its ranks on the other machines
        hosts = hosts[:1]
    if len(hosts) != task.nnodes:
        print(f"orch: {too_few(kind, task.nnodes, hosts)}", file=sys.stderr)
        return 1
    place = Place(kind, number, int(start), 0, hosts, limit=_number(limit))
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    agents = JobAgents()
    for node in range(len(hosts)):
        path = f"{run_dir}/{SCHEDULERS[kind].folder}/agent.{number}.{start}.{node}.log"
        try:
            with open(path, "ab") as log:
                agents.start(node, agent_argv(replace(place, node=node, slots=slots[node]), run_dir), log)
        except OSError as error:
            why = f"{error.filename}: {error.strerror}"
            print(
                f"orch: the agent of node {node} ({hosts[node]}) can't be started: {why}", file=sys.stderr, flush=True
            )
            agents.kill()
            return 1
    _watch(agents, place, run_dir, task.link_timeout + LEAVING_SECONDS)
    if os.path.exists(word_path(run_dir, kind, place.start)) and not is_cancelled(run_dir):
        return EXIT_REQUEUE
    return agents.code()


def _hear_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def too_few(kind: str, nodes: int, hosts: Sequence[str]) -> str:
    """Return the error message for a job whose number of hosts differs from the run's number of nodes."""
    facts = SCHEDULERS[kind]
    said = f"the plan has {nodes} nodes, {facts.title} gave {len(hosts)}: {in_words(hosts)}"
    return f"{said}; {facts.if_too_few}" if facts.if_too_few else said


def hosts_of(kind: str, environ: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[int | None, ...]]:
    """Return the job's machines, this machine first, and the slots of each machine; None if the slots are unknown.

    If the job has no list of machines, it has only this machine. Raises AllocationError if the list can't be read.
    """

    def read(path: str) -> str:
        return read_regular(path, MOST_RECORD).decode()

    found = read_allocation(environ, read, only=kind)
    hosts = found.hosts if found is not None else (socket.gethostname(),)
    if variable := SCHEDULERS[kind].cores:
        cores = environ.get(variable, "")
        return hosts, (int(cores) if cores.isdecimal() else None,) * len(hosts)
    return hosts, found.counts if found is not None else (1,)


def agent_argv(place: Place, run_dir: str) -> list[str]:
    """Return the command that starts a node's agent. Node 0's agent is a local program; the other agents are started by
    the scheduler's remote command.
    """
    words = [place.kind, place.number, str(place.start), str(place.node), ",".join(place.hosts)]
    words += [str(place.limit or "-"), str(place.slots or "-")]
    argv = [sys.executable, f"{run_dir}/node.pyz", "in-job", run_dir, *words]
    # Grid Engine ends the whole job if one of its tasks is killed. So a shell runs the agent, and exits with 1 instead.
    remote = SCHEDULERS[place.kind].remote_shell
    return argv if place.node == 0 else [*remote, place.hosts[place.node], f"{shlex.join(argv)} || exit 1"]


def run_agent_of_job(
    run_dir: str, kind: str, number: str, start: str, node: str, hosts: str, limit: str, slots: str
) -> int:
    """Run the agent of the node and the start that `agent_argv` has encoded in these arguments. Return the agent's exit
    code.
    """
    place = Place(
        kind, number, int(start), int(node), tuple(hosts.split(",")), limit=_number(limit), slots=_number(slots)
    )
    return run_in_job(run_dir, lambda: place)


def _number(word: str) -> int | None:
    return None if word == "-" else int(float(word))


def _watch(agents: JobAgents, place: Place, run_dir: str, patience: float) -> None:
    """Wait until all agents have ended. Kill agents that still run `patience` seconds after the end of node 0's agent.

    This polls the run's folder for a cancel. A scheduler's command can't signal node 0's agent alone, and a signal to
    all processes of the job would kill data loaders.
    """
    warn_at = time.monotonic() + place.limit - warning(place.limit) if place.limit else float("inf")
    end, is_told = float("inf"), False
    while living := agents.living():
        now = time.monotonic()
        if 0 not in living and end == float("inf"):
            end = now + patience
        if now >= end:
            for node in living:
                agents.by_node[node].kill()
        if now >= warn_at:
            agents.stop_leader(signal.SIGXCPU)
            warn_at = float("inf")
        if not is_told and is_cancelled(run_dir):
            is_told = True
            agents.stop_leader(signal.SIGTERM)
        got = signal.sigtimedwait(WATCHED, max(0.0, min(LOOK_SECONDS, warn_at - now)))
        if got is not None and got.si_signo in STOP_SIGNALS:
            print(f"orch: the scheduler sent signal {got.si_signo}", file=sys.stderr, flush=True)
            agents.stop_leader(signal.SIGTERM)
