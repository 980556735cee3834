"""Other people's batch files, by plain sbatch and by orch: the same nodes, ranks and losses.

docs/from-sbatch.md has the table. tests/unit/operations/test_batch_files.py says which files are converted.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from typing import Any

import pytest

from tests.cluster.scheduler import COUNT, FOLDER
from tests.cluster.test_slurm import Run, User, alice
from tests.patience import PATIENCE
from tests.testbed.layout import REPO
from tests.unit.operations.test_batch_files import CONVERTED, FILES, REFUSED

__all__ = ["alice"]
pytestmark = pytest.mark.cluster("slurm", nodes=4)

SOURCE = REPO / "tests" / "batch_files"
PATH = f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin"


def _results(alice: User, folder: str) -> list[dict[str, Any]]:
    where = alice.testbed.file("ctl", f"{FOLDER}/{folder}")
    return sorted((json.loads(path.read_text()) for path in where.glob("*.json")), key=str)


def _shape(results: list[dict[str, Any]]) -> tuple[Any, ...]:
    """What must be equal: the ranks with their worlds, arguments and losses, and how many ranks each node had."""
    ranks = sorted((each["rank"], each["world"], each["losses"], each["args"]) for each in results)
    return ranks, sorted(Counter(each["host"] for each in results).values())


def _by_sbatch(alice: User, name: str) -> list[dict[str, Any]]:
    alice.testbed.output("ctl", "mkdir", "-p", f"{FOLDER}/plain")
    done = alice.testbed.run(
        "ctl", "env", f"--chdir={FOLDER}", "sbatch", "--wait", name,
        PATH=PATH, BATCH_FILE_RESULTS=f"{FOLDER}/plain", timeout=2 * PATIENCE,
    )  # fmt: skip
    logs = [path.read_text() for path in alice.testbed.file("ctl", FOLDER).glob("*.out")]
    assert done.code == 0, (done.err, logs)
    return _results(alice, "plain")


def _by_orch(alice: User, name: str) -> list[dict[str, Any]]:
    alice.testbed.output("ctl", "mkdir", "-p", f"{FOLDER}/orch")
    env = {"PATH": PATH, "BATCH_FILE_RESULTS": f"{FOLDER}/orch"}
    argv = ("env", f"--chdir={FOLDER}", sys.executable, "-m", "orchestrator.cli")
    common = {**env, "PYTHONPATH": str(REPO), "NO_COLOR": "1", "ORCH_HOME": "/shared/alice-orch"}
    job, profile = name, "big.yaml"
    if name in CONVERTED:
        init = alice.testbed.run("ctl", *argv, "init", "converted", name, **common)
        assert init.code == 0, init.err
        job, profile = "converted.yaml", "converted"
    done = alice.testbed.run("ctl", *argv, "submit", job, "-p", f"{profile}", "--json", **common)
    assert done.code == 0, done.err
    run = Run(alice, str(json.loads(done.out)["run_id"]))
    state = run.end()
    assert state["state"] == "succeeded", (state["verdict"], run.text("nodes/0/attempt_0/rank_0.log"))
    return _results(alice, "orch")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[]
            if name == "04_node_loop.sbatch"
            else [
                pytest.mark.full("tests/unit/operations/test_batch_files.py::test_each_file_is_converted_or_refused")
            ],
        )
        for name in FILES
        if name not in REFUSED
    ],
)
def test_orch_starts_what_sbatch_starts(alice: User, name: str) -> None:
    for path in SOURCE.iterdir():
        if path.is_file():
            alice.write(path.name, path.read_text())
    alice.write("big.yaml", "kind: slurm\nnodes: 1\n")
    expected = _by_sbatch(alice, name)
    found = _by_orch(alice, name)
    assert expected
    assert _shape(found) == _shape(expected)


COUNTING = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=1
#SBATCH --requeue
echo "in $(basename "$SLURM_SUBMIT_DIR")"
srun --label bash -c 'RANK=$SLURM_PROCID exec python count.py 260'
"""


def _submitted(alice: User, text: str) -> Run:
    alice.write("count.py", COUNT)
    alice.write("count.sbatch", text)
    profile = alice.write("big.yaml", "kind: slurm\nnodes: 1\n")
    done = alice.orch("submit", f"{FOLDER}/count.sbatch", "-p", profile, "--json", PATH=PATH)
    assert done.code == 0, done.err
    assert "count.sbatch runs as it is, on the first node of its job" in done.err
    return Run(alice, str(done.json["run_id"]))


@pytest.mark.full(
    "tests/unit/backends/slurm/test_script.py::test_only_a_file_that_asks_for_a_requeue_is_warned_of_its_limit",
    "tests/cluster/test_slurm.py::test_a_cancel_stops_at_a_boundary_and_proves_it",
)
def test_a_file_that_asks_for_a_requeue_goes_on_after_its_time_limit(alice: User) -> None:
    run = _submitted(alice, COUNTING)
    state = run.end()
    logs = [run.text(f"nodes/0/attempt_{attempt}/rank_0.log") for attempt in range(2)]
    assert state["state"] == "succeeded", (state["verdict"], logs)
    assert "in code" in logs[0]
    assert "0: attempt 0 from step 0 " in logs[0]
    assert "1: attempt 0 from step 0 " in logs[0]
    assert "0: done" in logs[1]
    assert "from step 0 " not in logs[1]


@pytest.mark.full(
    "tests/unit/backends/slurm/test_script.py::test_a_batch_file_as_it_is_has_its_own_options_and_only_a_place_from_the_profile",
    "tests/cluster/test_slurm.py::test_a_cancel_stops_at_a_boundary_and_proves_it",
)
def test_a_cancel_and_a_failure_of_a_file_as_it_is(alice: User) -> None:
    run = _submitted(alice, COUNTING.replace("--requeue", "--no-requeue").replace("--time=1", "--time=10"))
    run.wait_for("1: attempt 0 from step 0")
    done = alice.orch("cancel", run.run_id)
    assert done.code == 0, done.err
    assert alice.orch("wait", run.run_id).code == 103
    assert alice.testbed.output("ctl", "squeue", "--noheader") == ""
    failed = _submitted(alice, COUNTING.replace("260", "none"))
    verdict = failed.end()["verdict"]
    assert (verdict["outcome"], verdict["cause"]) == ("failed", "user_error")
    assert "invalid literal for int" in failed.text("nodes/0/attempt_0/rank_0.log")
