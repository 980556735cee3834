"""What a cluster or its user breaks, on a real Slurm: one clear message each; and runs that share a node."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import submitit

from tests.cluster.control import Control
from tests.cluster.scheduler import FOLDER
from tests.cluster.test_slurm import PROFILE, Run, User, _start_controller
from tests.testbed.machine import wait_until

pytestmark = pytest.mark.cluster("slurm", nodes=4)


@pytest.fixture
def alice(testbed: Control) -> User:
    return User(testbed)


def test_without_munge_the_message_names_it(alice: User) -> None:
    pid = alice.testbed.output("ctl", "cat", "/run/munge/pid", user="root")
    alice.testbed.undo.callback(_start_munge, alice.testbed)
    alice.testbed.output("ctl", "kill", pid, user="root")
    wait_until(lambda: alice.testbed.run("ctl", "munge", "-n").code != 0, "munged's end")
    named = alice.write("hello.yaml", "command: [hostname]\n")
    done = alice.orch("submit", named, "-p", alice.write("p.yaml", PROFILE))
    assert (done.code, done.out) == (1, ""), done.err
    assert "munge, which proves to Slurm who you are, does not answer on this machine" in done.err
    _start_munge(alice.testbed)
    assert alice.testbed.output("ctl", "squeue", "--noheader") == ""


def _start_munge(testbed: Control) -> None:
    if testbed.run("ctl", "munge", "-n").code != 0:
        files = ("--log-file=/srv/munge/log", "--pid-file=/run/munge/pid", "--seed-file=/srv/munge/seed")
        testbed.output("ctl", "/usr/sbin/munged", "--force", *files, user="munge")
        wait_until(lambda: testbed.run("ctl", "munge", "-n").code == 0, "munged")
        wait_until(lambda: testbed.run("ctl", "squeue").code == 0, "Slurm's trust")


def test_a_node_whose_interpreter_lacks_submitit_needs_none(alice: User) -> None:
    folder = Path(submitit.__file__).parent
    alice.testbed.output("n1", "mount", "-t", "tmpfs", "none", str(folder), user="root")
    alice.testbed.undo.callback(alice.testbed.output, "n1", "umount", str(folder), user="root")
    named = alice.write("hello.yaml", "command: [hostname]\n")
    where = alice.write("p.yaml", f"{PROFILE}sbatch: {{nodelist: n1}}\n")
    done = alice.orch("submit", named, "-p", where, "--nodes", "1", "--follow")
    assert done.code == 0, done.err


def test_runs_that_share_a_node_have_ports_and_gpus_of_their_own(alice: User) -> None:
    options = ("--nodes", "1", "--set", "profile.gpus_per_node=1")
    runs = [alice.count(4000, "sbatch: {nodelist: n1}\n", *options) for _ in range(3)]
    for run in runs:
        run.wait_for("attempt 0")
    wait_until(lambda: {run.status()["state"] for run in runs} == {"running"}, "all three at the same time")
    assert len({_port(run) for run in runs}) == 3
    gpus = [run.text("nodes/0/attempt_0/rank_0.log").rpartition("GPUs ")[2].strip() for run in runs]
    assert len(set(gpus)) == 3, gpus
    assert {alice.orch("cancel", run.run_id).code for run in runs} == {0}


@contextlib.contextmanager
def forgetting(alice: User) -> Iterator[None]:
    """What the controller learns meanwhile it has lost afterwards: it was killed before it had saved anything."""
    state = alice.testbed.file("ctl", "/srv/slurm/ctld")
    saved = state.with_name("saved")
    controller = alice.testbed.output("ctl", "cat", "/run/slurmctld.pid", user="root")
    alice.testbed.output("ctl", "kill", "-STOP", controller, user="root")  # it saves by renaming what is copied here
    try:
        shutil.copytree(state, saved)
    finally:
        alice.testbed.output("ctl", "kill", "-CONT", controller, user="root")
    alice.testbed.undo.callback(shutil.rmtree, saved, ignore_errors=True)
    yield
    alice.testbed.undo.callback(_start_controller, alice.testbed)
    alice.testbed.output("ctl", "pkill", "-KILL", "--pidfile", "/run/slurmctld.pid", user="root")
    wait_until(lambda: alice.testbed.run("ctl", "scontrol", "ping").code != 0, "the controller's end")
    shutil.rmtree(state)
    saved.rename(state)


def forgotten(state: dict[str, Any]) -> bool:
    """Is the run's verdict that Slurm has lost its job?"""
    verdict = state["verdict"]
    words = r"Slurm job \d+(_\d+)?: Slurm does not know it any more, and has no record of its end: .* \(FORGOTTEN\)"
    assert re.fullmatch(words, verdict["reason"]), verdict
    return (state["state"], verdict["cause"]) == ("failed", "infra")


def test_a_job_that_slurm_has_lost_ends_its_run(alice: User) -> None:
    partition = ("scontrol", "update", "partitionname=main")
    alice.testbed.undo.callback(alice.testbed.output, "ctl", *partition, "state=up", user="root")
    with forgetting(alice):
        alice.testbed.output("ctl", *partition, "state=down", user="root")
        named = alice.write("hello.yaml", "command: [hostname]\n")
        done = alice.orch("submit", named, "-p", alice.write("p.yaml", PROFILE), "--json")
        run = Run(alice, done.json["run_id"])
        assert run.status()["state"] == "pending"
    state = run.status()
    assert (state["state"], state["verdict"]) == ("pending", None)
    assert re.fullmatch(r"Slurm can't be asked: Slurmctld\(primary\) at ctl is DOWN", state["detail"])
    _start_controller(alice.testbed)
    assert forgotten(run.end())
    assert run.status()["verdict"] == run.end()["verdict"]


@pytest.mark.full(
    "tests/cluster/test_slurm_faults.py::test_a_job_that_slurm_has_lost_ends_its_run",
)
def test_of_an_array_those_points_are_lost_that_slurm_has_lost(alice: User) -> None:
    with forgetting(alice):
        job = alice.write("job.yaml", "command: [sh, -c, 'echo here; [ -e $GATE ] || sleep 600']\n")
        alice.write("open", "")
        one = alice.write("p.yaml", PROFILE.replace("nodes: 3", "nodes: 1"))
        points = f"job.env.GATE={FOLDER}/open,{FOLDER}/closed,{FOLDER}/no"
        done = alice.orch("submit", job, "-p", one, "--sweep", points, "--parallel", "1")
        assert done.code == 0, done.err
        sweep = done.out.strip()
        runs = [Run(alice, f"{sweep}.{index}") for index in range(3)]
        assert runs[0].end()["state"] == "succeeded"
        runs[1].wait_for("here")
    _start_controller(alice.testbed)
    assert forgotten(runs[2].end())
    assert runs[1].end()["verdict"]["cause"] == "infra"
    assert runs[0].status()["state"] == "succeeded"
    assert [event["outcome"] for event in runs[0].events("agent_ended")] == ["succeeded"]


def _port(run: Run) -> int:
    return int(run.events("started")[0]["master_port"])
