"""Slurm jobs with spares: what the loss of a node, of node 0 and of a spare costs; other ends are as before."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.cluster.control import Control
from tests.cluster.test_slurm import COUNT, PROFILE, Run, User
from tests.cluster.test_slurm_login import LAPTOP, SHARED, Laptop, laptop
from tests.patience import PATIENCE
from tests.testbed.machine import wait_until

__all__ = ["laptop"]  # a fixture
pytestmark = pytest.mark.cluster("slurm", nodes=4)

SPARE = "spares: 1\n"
TWO = PROFILE.replace("nodes: 3", "nodes: 2")


@pytest.fixture
def alice(testbed: Control) -> User:
    return User(testbed)


def hosts(run: Run) -> list[list[str]]:
    """The nodes of each start."""
    return [event["hosts"] for event in run.events("batch_job")]


def requeues(run: Run) -> int:
    """How often Slurm has queued the job again."""
    shown = run.user.testbed.output("ctl", "scontrol", "show", "job", run.job)
    return int(re.search(r"Restarts=(\d+)", shown)[1])  # type: ignore[index]


def succeeded(run: Run) -> dict[str, Any]:
    """Wait for the run's success, and return its status."""
    state = run.end()
    assert state["state"] == "succeeded", state["verdict"]
    assert "from step 0 " not in run.text(f"nodes/0/attempt_{state['attempt']}/rank_0.log")
    return state


@pytest.mark.full(
    "tests/local/test_slurm_spares.py::test_a_spare_has_the_place_of_a_lost_node_in_the_same_job",
)
def test_a_node_that_crashes_is_replaced_by_the_spare_without_a_requeue(alice: User) -> None:
    run = alice.count(80, f"{SPARE}gpus_per_node: 2\n")
    run.wait_for_checkpoint()
    first = hosts(run)[0]
    alice.testbed.crash(first[1])
    wait_until(lambda: len(hosts(run)) > 1, f"another start of {run.run_id}", seconds=2 * PATIENCE)
    spare = next(host for host in hosts(run)[1] if host not in first)
    run.wait_for("attempt 1", "nodes/2/attempt_1/rank_2.log")
    assert alice.orch("shell", run.run_id, "--node", "2", "--", "hostname").out == f"{spare}\n"
    state = succeeded(run)
    assert (state["restarts"], requeues(run)) == (1, 0)
    for rank in range(3):  # also where Slurm still counts the GPUs to the step of the first start
        assert "GPUs 0,1" in run.text(f"nodes/{rank}/attempt_1/rank_{rank}.log")
    assert hosts(run) == [first, sorted({*first, spare} - {first[1]})]
    (replaced,) = run.events("replaced")
    assert (replaced["lost"], replaced["host"], replaced["by"]) == (1, first[1], spare)
    assert "no heartbeat for 10 s" in replaced["why"]
    assert run.in_accounting() == "COMPLETED"
    said = f"node 1 ({first[1]}) was lost: no heartbeat for 10 s; {spare} took the place of {first[1]}"
    assert said in " ".join(alice.orch("why", run.run_id).out.split())


@pytest.mark.full(
    "tests/local/test_slurm_spares.py::test_the_loss_of_the_batch_script_is_a_requeue_by_another_agent",
)
def test_the_crash_of_node_0_is_a_requeue_and_orch_says_so(alice: User) -> None:
    run = alice.count(80, SPARE, "--nodes", "2")
    run.wait_for_checkpoint()
    first = hosts(run)[0]
    alice.testbed.crash(first[0])
    state = succeeded(run)
    assert (state["restarts"], requeues(run)) == (1, 1)
    (again,) = run.events("starting_again")
    said = f"node 1 lost node 0: .*; {first[0]} ran the batch script, so Slurm starts the job again on other nodes"
    assert re.fullmatch(said, again["reason"])
    assert first[0] not in hosts(run)[1]
    assert "ran the batch script" in alice.orch("why", run.run_id).out


@pytest.mark.full(
    "tests/local/test_slurm_spares.py::test_a_spare_has_the_place_of_a_lost_node_in_the_same_job",
    "tests/local/test_slurm_spares.py::test_without_a_node_that_answers_the_job_is_queued_again",
)
def test_the_crash_of_the_spare_costs_nothing_until_it_is_needed(alice: User) -> None:
    run = alice.count(320, SPARE, "--nodes", "2")
    run.wait_for_checkpoint()
    first = hosts(run)[0]
    (spare,) = {host for host in job_nodes(run) if host not in first}
    alice.testbed.crash(spare)
    wait_until(lambda: spare not in job_nodes(run), f"Slurm to miss {spare}", seconds=2 * PATIENCE)
    assert len(hosts(run)) == 1
    alice.testbed.boot(spare)
    alice.testbed.crash(first[1])
    state = succeeded(run)
    assert (state["restarts"], requeues(run)) == (1, 1)


def job_nodes(run: Run) -> list[str]:
    """The nodes that Slurm counts to the job."""
    names = run.user.testbed.output("ctl", "squeue", "--noheader", f"--jobs={run.job}", "--format=%N")
    return run.user.testbed.output("ctl", "scontrol", "show", "hostnames", names).split()


@pytest.mark.full(
    "tests/local/test_slurm_spares.py::test_a_spare_has_the_place_of_a_lost_node_in_the_same_job",
    "tests/local/test_slurm_spares.py::test_without_a_node_that_answers_the_job_is_queued_again",
)
def test_a_requeue_a_time_limit_and_both_cancels_are_as_without_spares(alice: User) -> None:
    run = alice.count(4000, SPARE)
    run.wait_for_checkpoint()
    alice.testbed.output("ctl", "scontrol", "requeue", run.job)
    wait_until(lambda: len(hosts(run)) == 2, "the second start", seconds=2 * PATIENCE)
    run.wait_for("attempt 1", "nodes/0/attempt_1/rank_0.log")
    steps = len(list(alice.testbed.file("ctl", f"{run.path}/checkpoints").glob("step_*")))
    folder = alice.testbed.file("ctl", f"{run.path}/checkpoints")
    wait_until(lambda: len(list(folder.glob("step_*/COMMIT"))) > steps, "another checkpoint")
    alice.testbed.output("ctl", "scancel", "--signal=USR2", run.job)  # as before the time limit
    wait_until(lambda: len(hosts(run)) == 3, "the third start", seconds=2 * PATIENCE)
    run.wait_for("attempt 2", "nodes/0/attempt_2/rank_0.log")
    assert [event["cause"] for event in run.events("starting_again")] == ["preempted", "timeout"]
    for rank in range(3):
        run.wait_for("attempt 2", f"nodes/{rank}/attempt_2/rank_{rank}.log")
    done = alice.orch("cancel", run.run_id)
    assert done.code == 0, done.err
    assert "0 processes left" in done.out + done.err
    assert run.status()["state"] == "cancelled"
    other = alice.count(4000, SPARE)
    other.wait_for("attempt 0")
    alice.testbed.output("ctl", "scancel", other.job, user="root")
    assert other.end()["state"] == "cancelled"
    assert [len(hosts(each)) for each in (run, other)] == [3, 1]


@pytest.mark.full(
    "tests/local/test_slurm_spares.py::test_a_spare_has_the_place_of_a_lost_node_in_the_same_job",
)
def test_each_run_of_an_array_has_its_spare(alice: User) -> None:
    alice.write("count.py", COUNT)
    named = alice.write("count.yaml", "script: count.py\nargs: [60]\nlauncher: exec\n")
    where = alice.write("p.yaml", TWO + SPARE)
    done = alice.orch("submit", named, "-p", where, "--sweep", "job.env.A=1,2", "--parallel", "1")
    assert done.code == 0, done.err
    run = Run(alice, f"{done.out.strip()}.0")
    run.wait_for_checkpoint()
    first = hosts(run)[0]
    alice.testbed.crash(first[1])
    assert succeeded(run)["restarts"] == 1
    assert first[1] not in hosts(run)[1]


@pytest.mark.full(
    "tests/local/test_slurm_spares.py::test_a_spare_has_the_place_of_a_lost_node_in_the_same_job",
    "tests/cluster/test_slurm_login.py::test_a_run_is_submitted_followed_requeued_and_brought_home",
)
def test_through_a_login_node(laptop: Laptop) -> None:
    laptop.write("count.py", COUNT)
    named = laptop.write("job.yaml", "script: count.py\nargs: [80]\nlauncher: exec\n")
    run = laptop.submit(named, "-p", laptop.profile(spares=1))
    folder = laptop.testbed.file("ctl", f"{SHARED}/runs/{run}/checkpoints")
    wait_until(lambda: list(folder.glob("step_*/COMMIT")), f"a checkpoint of {run}")
    first = [node["host"] for node in laptop.status(run)["nodes"]]
    laptop.testbed.crash(first[1])
    assert laptop.orch("wait", run).code == 0, laptop.orch("why", run).out
    state = laptop.status(run)
    assert (state["state"], state["restarts"]) == ("succeeded", 1)
    assert [node["host"] for node in state["nodes"]] != first
    assert '"kind": "replaced"' in laptop.text(run, "nodes/0/events.jsonl")
    assert LAPTOP not in first
