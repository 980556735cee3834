"""The place of an agent in a Slurm job: Slurm's variables tell each task its node, the nodes and the start."""

from __future__ import annotations

import os
from collections.abc import Mapping

from orchestrator.node.agent.batch import Place, run_in_job
from orchestrator.protocol.allocation import expand_nodes


def start_number(environ: Mapping[str, str]) -> int:
    """Return how many times Slurm has started this job before."""
    return int(environ.get("SLURM_RESTART_COUNT") or 0)


def place_in(environ: Mapping[str, str]) -> Place:
    """Return the place of this task. Raises KeyError, ValueError or AllocationError if this is no task of a job."""
    hosts = expand_nodes(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "")
    return Place(
        "slurm", environ.get("SLURM_JOB_ID", ""), start_number(environ), int(environ["SLURM_NODEID"]), tuple(hosts),
        environ.get("SLURM_LAUNCH_NODE_IPADDR", ""), _limit(environ),
    )  # fmt: skip


def _limit(environ: Mapping[str, str]) -> float | None:
    """Return the time limit of each start, which newer versions of Slurm report."""
    try:
        return float(int(environ["SLURM_JOB_END_TIME"]) - int(environ["SLURM_JOB_START_TIME"]))
    except (KeyError, ValueError):
        return None


def run_slurm_agent(run_dir: str) -> int:
    """Run the agent of this task of a Slurm job, and return its exit code."""
    if run_dir.endswith(".%a"):  # a task of an array: Slurm tells it which of the array's runs it belongs to
        run_dir = f"{run_dir[:-2]}{os.environ.get('SLURM_ARRAY_TASK_ID')}"
    return run_in_job(run_dir, lambda: place_in(os.environ))
