"""Slurm as sites set it up: variables that modules set, an sbatch of the site's own, and what Slurm refuses."""

from __future__ import annotations

import re

import pytest

from tests.cluster.control import Control
from tests.cluster.scheduler import FOLDER
from tests.cluster.test_slurm import PROFILE, User
from tests.cluster.test_slurm_login import Laptop
from tests.testbed.layout import REPO
from tests.testbed.machine import wait_until

pytestmark = pytest.mark.cluster("slurm", nodes=4)

# What a site's modules may set; with any of them taken, a run is lost, started twice, or on other nodes.
MODULES = {
    "SBATCH_JOB_NAME": "site", "SBATCH_ARRAY_INX": "0-1", "SBATCH_PARTITION": "short", "SBATCH_TIMELIMIT": "1",
    "SBATCH_MEM_PER_NODE": "1", "SBATCH_NO_REQUEUE": "1", "SBATCH_EXPORT": "NONE", "SBATCH_COMMENT": "site",
    "SBATCH_WCKEY": "thesis", "SQUEUE_PARTITION": "short", "SINFO_PARTITION": "nowhere", "SCONTROL_ALL": "1",
    "SLURM_EXPORT_ENV": "NONE", "SLURM_LABELIO": "1",
}  # fmt: skip


@pytest.fixture
def alice(testbed: Control) -> User:
    return User(testbed)


def test_a_sites_variables_and_its_own_sbatch_change_nothing_that_the_profile_says(alice: User) -> None:
    real = alice.testbed.output("ctl", "which", "sbatch")
    own = alice.program("sbatch", f'exec {real} --export=NONE --partition=short --job-name=site "$@"')
    shell = {**MODULES, "PATH": f"{own}:/usr/local/bin:/usr/bin:/bin"}
    job = alice.write("hello.yaml", "command: [sh, -c, 'echo rank $RANK of $WORLD_SIZE']\n")
    where = alice.write("p.yaml", f"{PROFILE}partition: main\n")
    done = alice.orch("submit", job, "-p", where, "--json", **shell)
    assert done.code == 0, done.err
    assert "the profile leaves open what the shell gives: wckey thesis by SBATCH_WCKEY" in done.err
    number, run = done.json["job"], done.json["run_id"]
    shown = alice.testbed.output("ctl", "scontrol", "show", "job", "-o", number)
    for words in (f"JobName={run} ", "Partition=main ", "TimeLimit=01:00:00 ", "Requeue=1 ", f"Comment=orch {run} "):
        assert words in f"{shown} "
    assert "ArrayJobId" not in shown
    assert alice.orch("wait", run, **shell).code == 0, alice.orch("why", run).out
    assert "rank 2 of 3" in alice.orch("logs", run, "--rank", "2").out
    done = alice.orch("doctor", "-p", where, "--on-node", **shell)
    assert "has no torch" in done.out or done.code == 0, done.out
    assert "there is no partition" not in done.out


def test_what_slurm_refuses_is_refused_in_its_words_and_with_numbers(alice: User) -> None:
    said = alice.refused("kind: slurm\nnproc_per_node: 1\nmem: 64G\n")
    assert "(sbatch: " in said
    assert re.search(r"n\[1-\d+\] have 4000 MiB of memory, 65536 asked", said)
    said = alice.refused("kind: slurm\nnproc_per_node: 1\ngres: nothing:1\n")
    assert "Invalid generic resource" in said
    said = alice.refused("kind: slurm\nnproc_per_node: 1\nsbatch: {requeue: expedite}\n")
    assert "this cluster's sbatch is too old for the value of an option in the profile: option '--requeue'" in said
    assert alice.orch("status", "--json").json == []


def test_on_a_cluster_without_a_shared_home_the_shipped_profile_needs_its_workdir_and_doctor_tells_so(
    alice: User,
) -> None:
    shipped = (REPO / "cluster_profiles/slurm-3x4.yaml").read_text()
    where = alice.write("slurm-3x4.yaml", shipped)
    plain = alice.testbed.orch("doctor", "-p", where)  # without ORCH_HOME, so that runs are below her home
    assert plain.code == 0, plain.out
    assert (
        "note: Slurm: only orch doctor --on-node can tell whether the nodes see /home/alice/.local/state/orch"
        in plain.out
    )
    seen = alice.testbed.orch("doctor", "-p", where, "--on-node")
    assert seen.code == 1
    assert "/home/alice/.local/state/orch/runs is not the same folder on " in seen.out
    assert "set `workdir` in the profile to a folder that login and compute nodes share" in seen.out
    with_workdir = shipped.replace("# workdir: /shared/me/orch", f"workdir: {FOLDER}/work")
    assert with_workdir != shipped
    done = alice.testbed.orch("doctor", "-p", alice.write("slurm-3x4.yaml", with_workdir), "--on-node")
    assert done.code == 0, done.out


def test_a_start_after_a_preemption_that_retry_forbids_ends_at_once(alice: User) -> None:
    run = alice.count(4000, job="retry: {preempted: 0}\n")
    run.wait_for("attempt 0")
    assert "Requeue=0 " in alice.testbed.output("ctl", "scontrol", "show", "job", "-o", run.job)
    alice.testbed.output("ctl", "scontrol", "update", f"jobid={run.job}", "requeue=1")  # against the job's own word
    alice.testbed.output("ctl", "scontrol", "requeue", run.job)
    state = run.end()
    assert (state["state"], state["verdict"]["cause"]) == ("failed", "preempted"), state["verdict"]
    assert "this start ended at once, because retry.preempted is 0" in state["verdict"]["reason"]
    assert run.text("nodes/0/attempt_1/rank_0.log") == ""


def test_through_a_login_node_a_sites_variables_do_as_little(testbed: Control) -> None:
    laptop = Laptop(testbed)
    exports = "".join(f"export {name}={value}\n" for name, value in MODULES.items())
    testbed.file("ctl", "/home/alice/.bashrc").write_text(exports)
    job = laptop.write("hello.yaml", "command: [sh, -c, 'echo rank $RANK']\n")
    run = laptop.submit(job, "-p", laptop.profile(partition="main", sbatch={"export": "NONE"}))
    shown = testbed.output("ctl", "squeue", "--noheader", "--states=all", f"--name={run}", "--format=%i|%P|%l|%k")
    assert shown.endswith(f"|main|1:00:00|orch {run}"), shown
    assert len(shown.splitlines()) == 1
    assert laptop.orch("wait", run).code == 0, laptop.orch("why", run).out
    wait_until(lambda: laptop.left(run) == [], "nothing left of the run")
