"""What a cluster or its user breaks, on a real Slurm: one clear message each; and runs that share a node."""

from __future__ import annotations

from pathlib import Path

import pytest
import submitit

from tests.cluster.control import Control
from tests.cluster.test_slurm import PROFILE, Run, User
from tests.testbed.machine import wait_until

pytestmark = [pytest.mark.cluster("slurm", nodes=4), pytest.mark.timeout(200)]


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
    assert "munge does not answer on this machine" in done.err
    _start_munge(alice.testbed)
    assert alice.testbed.output("ctl", "squeue", "--noheader") == ""


def _start_munge(testbed: Control) -> None:
    if testbed.run("ctl", "munge", "-n").code != 0:
        files = ("--log-file=/srv/munge/log", "--pid-file=/run/munge/pid", "--seed-file=/srv/munge/seed")
        testbed.output("ctl", "/usr/sbin/munged", "--force", *files, user="munge")
        wait_until(lambda: testbed.run("ctl", "munge", "-n").code == 0, "munged")
        wait_until(lambda: testbed.run("ctl", "squeue").code == 0, "Slurm's trust")


def test_a_node_whose_interpreter_lacks_submitit_is_said_to(alice: User) -> None:
    folder = Path(submitit.__file__).parent
    alice.testbed.output("n1", "mount", "-t", "tmpfs", "none", str(folder), user="root")
    alice.testbed.undo.callback(alice.testbed.output, "n1", "umount", str(folder), user="root")
    named = alice.write("hello.yaml", "command: [hostname]\n")
    where = alice.write("p.yaml", f"{PROFILE}sbatch: {{nodelist: n1}}\n")
    done = alice.orch("submit", named, "-p", where, "--nodes", "1", "--follow")
    assert done.code == 100, done.err
    assert "has no submitit on the nodes: install orch where they see it" in alice.orch("why", "last").out


def test_runs_that_share_a_node_have_ports_and_gpus_of_their_own(alice: User) -> None:
    options = ("--nodes", "1", "--set", "profile.gpus_per_node=1")
    runs = [alice.count(400, "sbatch: {nodelist: n1}\n", *options) for _ in range(3)]
    for run in runs:
        run.wait_for("attempt 0")
    assert {run.status()["state"] for run in runs} == {"running"}  # at the same time
    assert len({_port(run) for run in runs}) == 3
    gpus = [run.text("nodes/0/attempt_0/rank_0.log").rpartition("GPUs ")[2].strip() for run in runs]
    assert len(set(gpus)) == 3, gpus
    assert {alice.orch("cancel", run.run_id).code for run in runs} == {0}


def _port(run: Run) -> int:
    return int(run.events("started")[0]["master_port"])
