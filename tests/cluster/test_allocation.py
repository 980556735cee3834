"""Runs inside a job of a scheduler: its machines are the hosts of an ssh profile."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import STEPS
from tests.patience import PATIENCE
from tests.testbed.layout import REPO
from tests.testbed.machine import wait_until

pytestmark = pytest.mark.cluster("slurm", nodes=4)

STATE = "/shared/alice/state"
PROFILE = "kind: ssh\nhosts: allocation\nnproc_per_node: 1\nshared: true\nworkdir: /shared/alice/orch\n"
# Slurm keeps the other nodes of the job if one is lost.
JOB = """#!/bin/sh
#SBATCH --nodes=4 --no-kill --output=/shared/alice/job.log
cd /shared/alice
orch() { "$ORCH_PYTHON" -m orchestrator.cli "$@"; }
orch doctor -p p.yaml >doctor.txt 2>&1
orch submit steps.yaml -p p.yaml --no-wait && orch wait last
"""
ENV = {"ORCH_PYTHON": sys.executable, "PYTHONPATH": str(REPO), "ORCH_HOME": STATE}


def write(testbed: Control, profile: str) -> None:
    files = {"steps.py": STEPS, "p.yaml": PROFILE + profile, "job.sh": JOB}
    files["steps.yaml"] = "script: steps.py\nargs: ['120', '0.25']\nlauncher: exec\nlimits: {link: 10s}\n"
    for name, text in files.items():
        testbed.output("ctl", "sh", "-c", 'mkdir -p /shared/alice && cat >"/shared/alice/$1"', "sh", name, stdin=text)


def run_of(testbed: Control) -> Path:
    """Return the folder of the one run, once it has a checkpoint."""
    runs, log = testbed.file("ctl", f"{STATE}/runs"), testbed.file("ctl", "/shared/alice/job.log")
    wait_until(lambda: list(runs.glob("*/checkpoints/step_*/COMMIT")), "a checkpoint", log, 2 * PATIENCE)
    return next(runs.glob("*-*"))


def verdict_of(run: Path) -> dict[str, Any]:
    wait_until((run / "verdict.json").exists, "the verdict", run / "events.jsonl", 3 * PATIENCE)
    return dict(json.loads((run / "verdict.json").read_text()))


def hosts_of(run: Path, nodes: int) -> set[str]:
    """Return the host of each node's last agent."""
    last = {}
    for node in range(nodes):
        lines = (run / "nodes" / str(node) / "events.jsonl").read_text().splitlines()
        last[node] = [event["host"] for event in map(json.loads, lines) if event["kind"] == "agent_started"][-1]
    return set(last.values())


@pytest.mark.full(
    "tests/unit/specs/test_allocation.py::test_the_machines_of_the_job_are_the_hosts_and_their_counts_the_ranks"
)
@pytest.mark.parametrize("way", ["ssh", "srun"])
def test_a_lost_node_is_replaced_by_a_spare_inside_the_job(testbed: Control, way: str) -> None:
    write(testbed, "spares: 1\n")
    for node in ("n1", "n2", "n3", "n4") if way == "srun" else ():
        testbed.gate(node, "ctl")  # sshd answers no other node
    testbed.output("ctl", "sbatch", "/shared/alice/job.sh", **ENV)
    run = run_of(testbed)
    assert json.loads((run / "run.json").read_text())["nnodes"] == 3
    doctor = testbed.file("ctl", "/shared/alice/doctor.txt").read_text()
    assert f"note: programs are started by {way} (start_by)" in doctor
    testbed.crash("n3")
    verdict = verdict_of(run)
    assert verdict["outcome"] == "succeeded", verdict
    assert hosts_of(run, 3) == {"n1", "n2", "n4"}


@pytest.mark.full("tests/unit/transport/test_in_job.py::test_a_machine_of_a_job_that_has_ended_is_not_used")
def test_a_run_continues_on_fewer_nodes_and_ends_with_the_job(testbed: Control) -> None:
    write(testbed, "start_by: srun\nmin_nodes: 3\n")
    wrap = ("--nodes=4", "--no-kill", "--output=/dev/null", "--wrap", "sleep 600")
    job = testbed.output("ctl", "sbatch", "--parsable", *wrap).strip()
    wait_until(lambda: testbed.output("ctl", "squeue", "-h", "-j", job, "-o", "%T").strip() == "RUNNING", "the job")
    # Outside of the job, so that orch is there to see its end.
    env = {"ORCH_HOME": STATE, "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n[1-4]"}
    done = testbed.orch("submit", "/shared/alice/steps.yaml", "-p", "/shared/alice/p.yaml", "--no-wait", **env)
    assert done.code == 0, done.err
    run = run_of(testbed)
    assert testbed.orch("shell", run.name, "--node", "1", "--", "hostname", **env).out == "n2\n"
    testbed.crash("n3")
    events = run / "nodes/0/events.jsonl"
    wait_until(lambda: '"kind": "going_on_without"' in (run / "events.jsonl").read_text(), "fewer nodes", events)
    log = run / "nodes/0/attempt_1/rank_0.log"
    wait_until(lambda: log.exists() and "begins at" in log.read_text(), "the next start's ranks", events, 2 * PATIENCE)
    testbed.output("ctl", "scancel", job)
    verdict = verdict_of(run)
    assert verdict["outcome"] == "failed", verdict
    assert f"Slurm job {job}, which had the machines of the run, has ended" in verdict["reason"]
