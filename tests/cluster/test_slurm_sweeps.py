"""Sweeps as one array on a real Slurm, and runs that wait in its queue for others."""

from __future__ import annotations

import json
import re

import pytest

from tests.cluster.control import Control
from tests.cluster.scheduler import COUNT, FOLDER, ORCH
from tests.cluster.test_slurm import PROFILE, Run, User
from tests.testbed.machine import wait_until

pytestmark = pytest.mark.cluster("slurm", nodes=4)

# Each point says who it is, and leaves a result and a model; one of them fails.
POINT = """
import json, os, sys
print("point", os.environ["POINT"], "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
if os.environ["RANK"] == "0":
    with open(os.environ["ORCH_RESULT_FILE"], "w") as file:
        json.dump({"accuracy": int(os.environ["POINT"]) / 10}, file)
    with open("model.pt", "w") as file:
        file.write(os.environ["POINT"])
sys.exit(3 if (os.environ["POINT"], os.environ["RANK"]) == ("7", "0") else 0)
"""
# A trial with x below 0 goes on until it is asked to stop.
TRIAL = """
import itertools, json, os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
x = float(os.environ["X"])
for step in itertools.count(1):
    if os.environ["RANK"] == "0":
        with open(os.environ["ORCH_METRICS_FILE"], "a") as file:
            file.write(json.dumps({"kind": "eval", "step": step, "loss": (x - 3) ** 2 + 1 / step}) + "\\n")
    if step >= 8 and (x > 0 or signal.sigtimedwait({signal.SIGTERM}, 1)):
        break
"""


@pytest.fixture
def alice(testbed: Control) -> User:
    return User(testbed)


def submit(alice: User, job: str, profile: str, *args: str) -> str:
    done = alice.orch("submit", alice.write("job.yaml", job), "-p", alice.write("p.yaml", profile), *args)
    assert done.code == 0, done.err
    return done.out.strip()


def array_of(alice: User, sweep: str) -> str:
    return str(json.loads(alice.testbed.output("ctl", "cat", f"{ORCH}/sweeps/{sweep}/handle.json"))["job"])


def test_a_sweep_is_one_array(alice: User) -> None:
    alice.write("point.py", POINT)
    alice.write(".gitignore", "*.pt\n")
    alice.write("model.pt", mine := "0" * (2 << 20))  # of an earlier run, and all points write one of this name
    job = "script: point.py\nlauncher: exec\n"
    two = PROFILE.replace("nodes: 3", "nodes: 2")
    sweep = submit(alice, job, two, "--sweep", "job.env.POINT=3,9,7,5", "--parallel", "3")
    done = alice.orch("wait", sweep)
    assert done.code == 100, done.err
    assert "4 runs: 3 succeeded, 1 failed" in done.err
    array = array_of(alice, sweep)
    script = alice.testbed.output("ctl", "cat", f"{ORCH}/sweeps/{sweep}/slurm/submission.sh")
    assert "#SBATCH --array=0-3%3\n" in script

    def listed() -> list[str]:
        squeue = ("squeue", f"--jobs={array}", "--array", "--noheader", "--states=all", "-o", "%i %T")
        return sorted(alice.testbed.output("ctl", *squeue).splitlines())

    # The runs have ended when their ranks have; the jobs do after that, and Slurm tidies up.
    wait_until(lambda: not re.search("RUNNING|COMPLETING", str(listed())), "the array")
    assert listed() == [f"{array}_{n} {'FAILED' if n == 2 else 'COMPLETED'}" for n in range(4)]
    for index, point in ((0, 3), (1, 9), (3, 5)):
        run = Run(alice, f"{sweep}.{index}")
        assert run.text("nodes/1/attempt_0/rank_1.log") == f"point {point} rank 1 of 2\n"
        assert run.text("code/model.pt") == str(point)
    pulled = alice.orch("pull", sweep, "--best", "--metric", "accuracy", "--to", f"{FOLDER}/best")
    assert pulled.err.startswith(f"{sweep}.1 is the best of {sweep}"), pulled.err
    assert alice.testbed.output("ctl", "cat", f"{FOLDER}/best/outputs/model.pt") == "9"
    assert alice.testbed.file("ctl", f"{FOLDER}/model.pt").read_text() == mine
    best = alice.orch("best", "--metric", "accuracy", sweep, "--json").json
    assert [(row["run_id"], row["values"]) for row in best[:2]] == [
        (f"{sweep}.1", {"job.env.POINT": "9"}), (f"{sweep}.2", {"job.env.POINT": "7"}),
    ]  # fmt: skip
    assert alice.orch("rm", sweep).code == 0
    assert sweep not in alice.testbed.output("ctl", "ls", f"{ORCH}/sweeps", f"{ORCH}/runs")


@pytest.mark.full(
    "tests/cluster/test_ssh_sweeps.py::test_a_search_gives_values_and_stops_what_is_bad",
    "tests/cluster/test_slurm_sweeps.py::test_a_sweep_is_one_array",
)
def test_the_trials_of_a_search_are_jobs_of_their_own_and_a_bad_one_is_stopped(alice: User) -> None:
    alice.write("trial.py", TRIAL)
    space = "search: {seed: 4, space: {job.env.X: {low: -10.0, high: 10.0}}}\n"  # draws 6.2, 6.0, -3.8, 1.0
    two = PROFILE.replace("nodes: 3", "nodes: 2")
    asked = ("--search", "random", "--trials", "4", "--parallel", "1", "--stop", "asha")
    sweep = submit(alice, f"script: trial.py\nlauncher: exec\nmetric: loss\n{space}", two, *asked)
    done = alice.orch("wait", sweep)
    assert (done.code, done.err) == (0, f"{sweep} succeeded: 4 runs: 3 succeeded, 1 stopped early\n")
    points = alice.orch("status", sweep, "--json").json["points"]
    assert len({point["job"] for point in points}) == 4
    stopped = alice.orch("why", f"{sweep}.2").out
    assert "stopped by its search at step 1: with loss" in stopped
    best = alice.orch("best", sweep, "--json").json[0]
    assert best["run_id"] == f"{sweep}.3"


@pytest.mark.full(
    "tests/cluster/test_slurm_sweeps.py::test_a_sweep_is_one_array",
    "tests/cluster/test_slurm.py::test_a_requeued_job_goes_on_from_its_checkpoint",
)
def test_a_point_is_requeued_alone_and_a_sweep_cancelled_and_waited_for(alice: User) -> None:
    """The last one: its job number is the whole array's."""
    alice.write("count.py", COUNT)
    job = "script: count.py\nargs: [4000]\nlauncher: exec\nlimits: {grace: 10s}\n"
    sweep = submit(alice, job, PROFILE.replace("nodes: 3", "nodes: 1"), "--sweep", "job.env.POINT=0,1")
    runs = [Run(alice, f"{sweep}.{index}") for index in range(2)]
    for run in runs:
        run.wait_for("attempt 0")
    vain = submit(alice, "command: [hostname]\n", PROFILE, "--after", sweep)
    anyhow = submit(alice, "command: [hostname]\n", PROFILE, "--after", f"{sweep}:any")
    squeue = ("squeue", "--noheader", "--format=%E", f"--name={vain},{anyhow}", "--sort=i")
    waits = [line.partition("(")[0] for line in alice.testbed.output("ctl", *squeue).split()]
    assert waits == [f"{how}:{array_of(alice, sweep)}_*" for how in ("afterok", "afterany")]
    assert Run(alice, vain).status()["detail"].startswith(f"waits for all of {sweep} to succeed; Slurm job ")
    alice.testbed.output("ctl", "scontrol", "requeue", f"{array_of(alice, sweep)}_1")
    wait_until(lambda: runs[1].text("nodes/0/attempt_1/rank_0.log"), "the second start of one point")
    done = alice.orch("cancel", sweep)
    assert (done.code, "cancelled 2 runs" in done.err) == (0, True), done.err
    assert [run.status()["restarts"] for run in runs] == [0, 1]
    waited = alice.orch("wait", sweep)
    assert (waited.code, "2 runs: 2 cancelled" in waited.err) == (103, True)
    assert Run(alice, anyhow).end()["state"] == "succeeded"
    reason = Run(alice, vain).end()["verdict"]["reason"]
    assert re.fullmatch(rf"{sweep}\.[01], after which it was to start, was cancelled", reason)


@pytest.mark.full(
    "tests/unit/backends/slurm/test_backend.py::test_a_task_of_an_array_that_slurm_has_forgotten_is_named_so",
)
def test_a_waiting_point_that_others_cancel_has_ended_and_is_not_blamed_on_memory(alice: User) -> None:
    one = PROFILE.replace("nodes: 3", "nodes: 1") + "sbatch: {begin: now+1hour}\n"
    sweep = submit(alice, "command: [hostname]\n", one, "--sweep", "job.env.POINT=0,1,2")
    array = array_of(alice, sweep)
    alice.testbed.output("ctl", "scancel", f"{array}_1")
    verdict = Run(alice, f"{sweep}.1").end()["verdict"]
    assert re.match(rf"Slurm job {array}_1: (it was cancelled|Slurm does not know it any more)", verdict["reason"])
    assert alice.orch("cancel", sweep).code == 0


@pytest.mark.full(
    "tests/cluster/test_slurm_sweeps.py::test_a_sweep_is_one_array",
)
def test_a_job_waits_in_the_queue_for_another(alice: User) -> None:
    alice.write("count.py", COUNT)
    count = "script: count.py\nargs: [4000]\nlauncher: exec\nlimits: {grace: 10s}\n"
    one = submit(alice, count, PROFILE)
    two = submit(alice, "command: [hostname]\n", PROFILE, "--after", f"{one}:any")
    three = submit(alice, "command: [hostname]\n", PROFILE, "--after", two)
    sweep = submit(alice, "command: [hostname]\n", PROFILE, "--sweep", "job.env.N=1,2", "--after", f"{one}:any")
    held = alice.testbed.output("ctl", "squeue", "--noheader", "--format=%E", f"--name={sweep}")
    assert held.startswith("afterany:")
    four = submit(alice, "command: [hostname]\n", PROFILE, "--after", one)
    Run(alice, one).wait_for("attempt 0")
    waits = r"Slurm job \d+ pending: it waits for another job \(Dependency\)"
    assert re.fullmatch(f"waits for {one} to end; {waits}", Run(alice, two).status()["detail"])
    assert alice.orch("cancel", one).code == 0
    assert Run(alice, three).end()["state"] == "succeeded"
    assert alice.orch("wait", sweep).code == 0
    state = Run(alice, four).end()
    assert state["state"] == "cancelled"
    assert state["verdict"]["reason"] == f"{one}, after which it was to start, was cancelled"
    assert (
        Run(alice, three).status()["created"] < Run(alice, two).status()["ended"] < Run(alice, three).status()["ended"]
    )
