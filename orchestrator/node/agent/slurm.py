"""Determines the position of an agent in a Slurm job. Slurm's variables give each task its node, the list of nodes and
the number of the start.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from orchestrator.node.agent.batch import Place, events_of, read_word, run_in_job, word_path
from orchestrator.protocol.cancelling import is_cancelled
from orchestrator.protocol.events import AgentEnded, GaveUp, of
from orchestrator.protocol.files import write_json
from orchestrator.protocol.hostlist import expand
from orchestrator.protocol.messages import Again
from orchestrator.protocol.schedulers import SCHEDULERS
from orchestrator.protocol.typed import to_json

FACTS = SCHEDULERS["slurm"]
START = "SLURM_ORCH_START"
"""The variable with the number of the start, in a job with spare nodes. orch hides variables with the prefix SLURM_
from sbatch, so no other job inherits this variable.
"""
ANSWER_SECONDS = 30.0  # Slurm's controller may need seconds to start a step when it is busy


def start_number(environ: Mapping[str, str]) -> int:
    """Return the number of this start of the agents, counted from 0. Each requeue by Slurm is a new start, and so is
    each srun in a job with spare nodes.
    """
    return int(environ.get(START) or environ.get("SLURM_RESTART_COUNT") or 0)


def place_in(environ: Mapping[str, str]) -> Place:
    """Return this Slurm task's `Place`: its node, the other nodes and the number of the start. Raises KeyError
    or ValueError if this process is no task of a job.
    """
    hosts = expand(environ.get("SLURM_STEP_NODELIST") or environ.get(FACTS.machines) or "")
    return Place(
        FACTS.name, environ.get(FACTS.number, ""), start_number(environ), int(environ["SLURM_NODEID"]), tuple(hosts),
        environ.get("SLURM_LAUNCH_NODE_IPADDR", ""), _limit(environ),
        int(environ.get("SLURM_RESTART_COUNT") or 0) if environ.get(START) else None,
    )  # fmt: skip


def _limit(environ: Mapping[str, str]) -> float | None:
    """Return the time limit of each start in seconds; None if Slurm is too old to report it."""
    try:
        return float(int(environ["SLURM_JOB_END_TIME"]) - int(environ["SLURM_JOB_START_TIME"]))
    except (KeyError, ValueError):
        return None


def run_slurm_agent(run_dir: str) -> int:
    """Run the agent of this Slurm task, and return its exit code."""
    if run_dir.endswith(".%a"):  # a task of a job array: Slurm's variables tell to which run of the array it belongs
        run_dir = f"{run_dir[:-2]}{os.environ.get('SLURM_ARRAY_TASK_ID')}"
    code = run_in_job(run_dir, lambda: place_in(os.environ))
    if code and START in os.environ:
        _requeue_without_script(run_dir, place_in(os.environ))
    return code


def answers(host: str) -> bool:
    """Return whether a machine of the job can start a program within ANSWER_SECONDS."""
    argv = FACTS.step(host, os.environ[FACTS.number], ["true"])
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, check=False, timeout=ANSWER_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _requeue_without_script(run_dir: str, place: Place) -> None:
    """If the machine that ran the job's batch script is lost, requeue the job, because Slurm would keep the job without
    a script.

    An agent that has lost its connection to node 0 calls this. If the run has no restart left, the job is requeued too.
    Its next start then ends at once, and so Slurm reports the job as failed, which is not possible in another way.
    """
    path = word_path(run_dir, place.kind, place.start)
    last = of(events_of(run_dir, place.node, place.start), GaveUp)[-1:]
    word = read_word(path)
    is_others = word is not None and word.node not in (None, place.node)
    if place.node == 0 or not last or is_others or is_cancelled(run_dir) or answers(place.hosts[0]):
        return
    if of(events_of(run_dir, 0, place.start), AgentEnded) or events_of(run_dir, 0, place.start + 1):
        return  # node 0's agent continued, and only this node had lost its connection
    lost = f"{place.hosts[0]} ran the batch script, so Slurm starts the job again on other nodes"
    again = Again(last[0].cause, f"{last[0].reason}; {lost}", place.node)
    write_json(path, to_json(again, whole=True), durable=False)
    job, array = place.number, os.environ.get("SLURM_ARRAY_JOB_ID")
    job = f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID')}" if array else job
    print(f"orch: {again.reason}", file=sys.stderr, flush=True)
    for argv in (["scontrol", "update", f"jobid={job}", "requeue=1"], ["scontrol", "requeue", job]):
        subprocess.run(argv, stdin=subprocess.DEVNULL, check=False)
