"""A run inside a job of a scheduler: its machines are the hosts of an ssh profile, with a spare."""

from __future__ import annotations

import json

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import STEPS
from tests.patience import PATIENCE
from tests.testbed.machine import wait_until

pytestmark = pytest.mark.cluster("slurm", nodes=4)

PROFILE = "kind: ssh\nhosts: allocation\nspares: 1\nnproc_per_node: 1\nshared: true\nworkdir: /shared/alice/orch\n"
# Slurm keeps the other nodes of the job if one is lost.
JOB = """#!/bin/sh
#SBATCH --nodes=4 --no-kill --output=/shared/alice/job.log
cd /shared/alice
"$ORCH_PYTHON" -m orchestrator.cli submit steps.yaml -p p.yaml --no-wait && "$ORCH_PYTHON" -m orchestrator.cli wait last
"""


@pytest.mark.full(
    "tests/unit/specs/test_allocation.py::test_the_machines_of_the_job_are_the_hosts_and_their_counts_the_ranks"
)
def test_a_lost_node_is_replaced_by_a_spare_inside_the_job(testbed: Control) -> None:
    import sys

    from tests.testbed.layout import REPO

    files = {"steps.py": STEPS, "p.yaml": PROFILE, "job.sh": JOB}
    files["steps.yaml"] = "script: steps.py\nargs: ['120', '0.25']\nlauncher: exec\nlimits: {link: 10s}\n"
    for name, text in files.items():
        testbed.output("ctl", "sh", "-c", 'mkdir -p /shared/alice && cat >"/shared/alice/$1"', "sh", name, stdin=text)
    env = {"ORCH_PYTHON": sys.executable, "PYTHONPATH": str(REPO), "ORCH_HOME": "/shared/alice/state"}
    testbed.output("ctl", "sbatch", "/shared/alice/job.sh", **env)
    runs = testbed.file("ctl", "/shared/alice/state/runs")
    log = testbed.file("ctl", "/shared/alice/job.log")
    wait_until(lambda: list(runs.glob("*/checkpoints/step_*/COMMIT")), "a checkpoint", log, 2 * PATIENCE)
    run = next(runs.glob("*-*"))
    record = json.loads((run / "run.json").read_text())
    assert record["nnodes"] == 3
    testbed.crash("n3")
    wait_until((run / "verdict.json").exists, "the verdict", log, 2 * PATIENCE)
    verdict = json.loads((run / "verdict.json").read_text())
    assert verdict["outcome"] == "succeeded", verdict
    lines = (run / "events.jsonl").read_text().splitlines()
    again = [event for event in map(json.loads, lines) if event["kind"] == "starting_again"]
    assert [event["hosts"] for event in again] == [["n1", "n2", "n4"]]
