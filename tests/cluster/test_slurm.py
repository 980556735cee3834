"""Runs on a real Slurm: from the submit to the verdict, through requeues, limits, preemption and lost nodes."""

from __future__ import annotations

import json
import re
import signal
import sys
from dataclasses import dataclass

import pytest

from tests.cluster.control import Control
from tests.cluster.scheduler import COUNT, FOLDER, ORCH, Person, Started
from tests.testbed.machine import wait_until
from tests.testbed.slurm import WORKING

pytestmark = pytest.mark.cluster("slurm", nodes=4)

PROFILE = "kind: slurm\nnodes: 3\nnproc_per_node: 1\ntime: 1h\n"


@dataclass(frozen=True)
class User(Person):
    queue = ("squeue", "--noheader")

    def program(self, name: str, text: str) -> str:
        """A program of hers in place of another one: the folder to put on PATH."""
        self.testbed.output("ctl", "mkdir", "-p", f"{FOLDER}/bin")
        self.testbed.output("ctl", "chmod", "+x", self.write(f"bin/{name}", f"#!/bin/sh\n{text}\n"))
        return f"{FOLDER}/bin"

    def count(self, steps: int, profile: str = "", *options: str, job: str = "") -> Run:
        return Run(self, self.counting(steps, PROFILE + profile, *options, job=job))


@dataclass(frozen=True)
class Run(Started):
    @property
    def job(self) -> str:
        """The number of its job."""
        answer = self.squeue("%i")
        return answer.split()[-1] if answer else ""

    def squeue(self, form: str) -> str:
        argv = ("squeue", "--noheader", "--states=all", f"--name={self.run_id}", f"--format={form}")
        return self.user.testbed.output("ctl", *argv)

    def in_accounting(self) -> str:
        """The job's state as sacct has it, once it is no more RUNNING there."""
        argv = ("sacct", "-n", "-X", "-P", f"--name={self.run_id}", "-o", "State")
        wait_until(lambda: "RUNNING" not in self.user.testbed.output("ctl", *argv), "the job's end in accounting")
        return self.user.testbed.output("ctl", *argv)


@pytest.fixture
def alice(testbed: Control) -> User:
    return User(testbed)


def test_the_dry_run_is_the_script_that_is_submitted(alice: User) -> None:
    run = alice.count(1, "partition: urgent\nmem: 200M\ngpus_per_node: 2\nsbatch: {nice: 5}\n")
    page = alice.orch("submit", f"{FOLDER}/count.yaml", "-p", f"{FOLDER}/p.yaml", "--dry-run").out
    shown = page.partition("the batch script, for sbatch:\n")[2].partition("\nwhat its task")[0]
    shown = "\n".join(line[2:] for line in shown.splitlines())
    submitted = run.text("slurm/submission.sh")
    assert shown.strip() == submitted.replace(run.run_id, "count-dryrun").strip()
    assert run.end()["state"] == "succeeded"
    assert "GPUs 0,1" in run.text("nodes/0/attempt_0/rank_0.log")  # Slurm's own choice stays


def test_a_job_that_waits_says_why_and_leaves_the_queue_when_cancelled(alice: User) -> None:
    run = alice.count(1, "sbatch: {begin: now+1hour}\n")
    state = run.status()
    assert state["state"] == "pending"
    assert re.fullmatch(r"Slurm job \d+ pending: eligible from 20[\d-]+ [\d:]+ \(BeginTime\)", state["detail"])
    assert "pending: eligible from 20" in alice.orch("status").out
    assert state["job"] == run.job
    done = alice.orch("cancel", run.run_id)
    assert (done.code, done.err) == (0, f"{run.run_id} cancelled\n  nothing of it had been started\n")
    assert run.status()["state"] == "cancelled"
    assert run.squeue("%T") == "CANCELLED"


@pytest.mark.full(
    "tests/cluster/test_slurm.py::test_a_cancel_stops_at_a_boundary_and_proves_it",
    "tests/cluster/test_slurm.py::test_an_agent_that_is_killed_costs_one_restart",
)
def test_a_cancel_between_two_starts_is_one(alice: User) -> None:
    run = alice.count(4000)
    run.wait_for("attempt 0")
    alice.testbed.output("ctl", "scontrol", "update", "partition=main", "state=DOWN", user="root")
    alice.testbed.undo.callback(
        alice.testbed.output, "ctl", "scontrol", "update", "partition=main", "state=UP", user="root"
    )
    agent = json.loads(run.text("nodes/2/agent.json"))
    alice.testbed.output(agent["host"], "kill", "-9", str(agent["pid"]))
    wait_until(lambda: run.squeue("%T") == "PENDING", "the job in the queue again")
    done = alice.orch("cancel", run.run_id)
    assert done.code == 0, done.err
    assert done.err.splitlines()[0] == f"{run.run_id} cancelled"
    assert "?" not in done.err
    assert alice.orch("wait", run.run_id).code == 103
    assert run.status()["verdict"]["reason"] == ""


def test_a_cancel_stops_at_a_boundary_and_proves_it(alice: User) -> None:
    run = alice.count(4000)
    for rank in range(3):  # one that is still starting has no boundary yet, and is killed
        run.wait_for("attempt 0", f"nodes/{rank}/attempt_0/rank_{rank}.log")
    done = alice.orch("cancel", run.run_id)
    assert done.code == 0, done.err
    assert "0 processes left" in done.out + done.err
    assert run.status()["state"] == "cancelled"
    assert run.events("rank_exit")
    assert {event["code"] for event in run.events("rank_exit")} == {95}
    assert not any(alice.testbed.processes(host, "alice", run.run_id) for host in alice.testbed.cluster.workers)


def test_a_suspended_job_is_cancelled(alice: User) -> None:
    run = alice.count(4000)
    run.wait_for("attempt 0")
    alice.testbed.output("ctl", "scontrol", "suspend", run.job, user="root")
    wait_until(lambda: run.squeue("%T") == "SUSPENDED", "the suspended job")
    done = alice.orch("cancel", run.run_id)
    assert done.code == 0, done.err
    assert done.err.splitlines()[0] == f"{run.run_id} cancelled"
    assert not any(alice.testbed.processes(host, "alice", run.run_id) for host in alice.testbed.cluster.workers)


@pytest.mark.full(
    "tests/unit/backends/slurm/test_backend.py::test_only_a_running_job_is_sent_a_signal_before_it_is_cancelled",
    "tests/cluster/test_slurm.py::test_a_suspended_job_is_cancelled",
)
@pytest.mark.parametrize("state", ["suspended now", "held", "requeued and held", "completing"])
def test_a_job_in_any_state_is_cancelled(alice: User, state: str) -> None:
    run = alice.count(4000, "sbatch: {hold: true}\n" if state == "held" else "")
    if state != "held":
        run.wait_for("attempt 0")
        verb = {"suspended now": "suspend", "requeued and held": "requeuehold"}.get(state, "")
        argv = ("scontrol", verb, run.job) if verb else ("scancel", run.job)
        alice.testbed.output("ctl", *argv, user="root")
    done = alice.orch("cancel", run.run_id, *(["--now"] if state == "suspended now" else []))
    assert done.code == 0, done.err
    assert run.status()["state"] == "cancelled"
    wait_until(lambda: run.squeue("%T") in ("CANCELLED", ""), "the job's end")
    assert not any(alice.testbed.processes(host, "alice", run.run_id) for host in alice.testbed.cluster.workers)


def test_an_allocation_that_others_cancel_is_said_to_be(alice: User) -> None:
    run = alice.count(4000)
    run.wait_for("attempt 0")
    alice.testbed.output("ctl", "scancel", run.job, user="root")
    state = run.end()
    assert state["state"] == "cancelled"
    assert re.search(r"Slurm job \d+: it was cancelled by root \(CANCELLED\)", state["verdict"]["reason"])


def test_a_requeued_job_goes_on_from_its_checkpoint(alice: User) -> None:
    run = alice.count(40)
    run.wait_for_checkpoint()
    alice.testbed.output("ctl", "scontrol", "requeue", run.job)
    state = run.end()
    assert (state["state"], state["restarts"], state["attempt"]) == ("succeeded", 1, 1)
    assert "from step 0 " in run.text("nodes/0/attempt_0/rank_0.log")
    assert "from step 0 " not in run.text("nodes/0/attempt_1/rank_0.log")
    assert [event["cause"] for event in run.events("starting_again")] == ["preempted"]
    assert run.text(f"slurm/agent.{run.job}.0.0.log") != run.text(f"slurm/agent.{run.job}.1.0.log")
    assert state["job"] == run.job
    first, second = state["attempts"]
    assert first["ended"] <= second["began"] < second["ended"] <= state["ended"]
    assert (first["resumed_from"], second["resumed_from"][:16], second["end"]) == (
        None,
        "checkpoints/step",
        "succeeded",
    )
    for command in ("status", "why"):
        page = alice.orch(command, run.run_id).out
        assert re.search(
            r"\n0 +- +[\d.]+ s .* ago +Slurm took its nodes away \(preempted\)\n1 +step \d+ +.* succeeded\n$", page
        ), page
    assert re.search(rf"job +{run.job} on n[\d\[]", alice.orch("status", run.run_id).out)
    assert alice.orch("outputs", run.run_id, "--json").json["files"] == []  # nothing of Slurm's or orch's own


@pytest.mark.full(
    "tests/local/test_slurm_agents.py::test_the_warning_before_the_time_limit_is_its_own_cause",
    "tests/cluster/test_slurm.py::test_a_requeued_job_goes_on_from_its_checkpoint",
)
@pytest.mark.parametrize("profile", ["", "sbatch: {signal: USR1@30}\n"], ids=["USR2", "USR1"])
def test_a_job_longer_than_its_limit_ends_trained(alice: User, profile: str) -> None:
    run = alice.count(260, profile, "--set", "profile.time=1m")  # 65 s of work
    state = run.end()
    assert state["state"] == "succeeded", state["verdict"]
    assert state["restarts"] >= 1
    assert {event["cause"] for event in run.events("starting_again")} == {"timeout"}
    assert run.in_accounting() == "COMPLETED"


def test_a_job_that_has_saved_nothing_by_its_time_limit_is_not_begun_again(alice: User) -> None:
    alice.write("idle.py", "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    named = alice.write("idle.yaml", "script: idle.py\nlauncher: exec\n")
    done = alice.orch("submit", named, "-p", alice.write("p.yaml", PROFILE), "--json")
    assert "saves no checkpoint, so all its work is lost at its time limit (1:00:00)" in done.err
    run = Run(alice, done.json["run_id"])
    run.wait_for("ready")
    alice.testbed.output(
        "ctl", "scancel", "--signal=USR2", run.job
    )  # as its batch script has Slurm do before the limit
    state = run.end()
    assert (state["state"], state["verdict"]["cause"]) == ("failed", "no_progress")
    assert run.events("starting_again") == []
    why = alice.orch("why", run.run_id).out
    assert "came before it had saved anything new: another start would end in the same way" in why
    assert "raise the time limit (`time`), or save checkpoints" in why
    assert "srun" not in why


@pytest.mark.full(
    "tests/cluster/test_slurm.py::test_a_requeued_job_goes_on_from_its_checkpoint",
    "tests/local/test_failures.py::test_term_to_an_agent_is_a_preemption_with_a_checkpoint",
    "tests/cluster/test_slurm_sites.py::test_a_start_after_a_preemption_that_retry_forbids_ends_at_once",
)
def test_a_job_gives_way_to_another_and_comes_back(alice: User) -> None:
    run = alice.count(60)
    run.wait_for_checkpoint()
    other = ("srun", "-p", "urgent", "-N4", "--exclusive", "sleep", "3")
    alice.testbed.output("ctl", *other, user="bob")
    state = run.end()
    assert (state["state"], state["restarts"]) == ("succeeded", 1)
    assert "from step 0 " not in run.text("nodes/0/attempt_1/rank_0.log")


@pytest.mark.full(
    "tests/cluster/test_slurm.py::test_a_requeued_job_goes_on_from_its_checkpoint",
    "tests/cluster/test_slurm.py::test_an_agent_that_is_killed_costs_one_restart",
    "tests/cluster/test_ssh_faults.py::test_a_machine_that_dies_is_replaced_by_a_spare",
)
def test_a_run_goes_on_without_a_node_that_crashes(alice: User) -> None:
    run = alice.count(60)
    run.wait_for_checkpoint()
    hosts = [node["host"] for node in run.status()["nodes"]]
    alice.testbed.crash(hosts[1])
    state = run.end()
    assert state["state"] == "succeeded", state["verdict"]
    assert state["restarts"] >= 1
    assert hosts[1] not in [node["host"] for node in state["nodes"]]
    assert "from step 0 " not in run.text(f"nodes/0/attempt_{state['attempt']}/rank_0.log")


def test_an_interpreter_below_the_home_folder_trains(alice: User) -> None:
    for host in ("ctl", "n1", "n2", "n3"):
        folder = alice.testbed.file(host, "/home/alice/venv/bin")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "python").symlink_to(sys.executable)
    run = alice.count(1, "python: ~/venv/bin/python\n", job="env: {A: b}\n")
    state = run.end()
    assert state["state"] == "succeeded", state["verdict"]
    done = alice.orch("doctor", "-p", f"{FOLDER}/p.yaml", "--on-node")
    assert "NODE" in done.out
    assert "can't be started" not in done.out  # a link to a virtual environment's interpreter has none of its packages


def test_an_agent_that_is_killed_costs_one_restart(alice: User) -> None:
    run = alice.count(40)
    run.wait_for("attempt 0")
    agent = json.loads(run.text("nodes/2/agent.json"))
    alice.testbed.output(agent["host"], "kill", "-9", str(agent["pid"]))
    state = run.end()
    assert (state["state"], state["restarts"]) == ("succeeded", 1), state["verdict"]
    word = json.loads(run.text("slurm/again.0"))  # of node 0, to which srun has sent TERM for it
    assert (word["cause"], word["reason"]) == (
        "infra", f"node 2 ({agent['host']}) was lost: its agent closed the connection"
    )  # fmt: skip


def test_a_submit_that_is_killed_after_sbatch_is_found_again(alice: User) -> None:
    run = _submit_and_kill(alice, f'{alice.testbed.output("ctl", "which", "sbatch")} "$@"')
    assert run.end()["state"] == "succeeded"
    assert len(run.squeue("%i").splitlines()) == 1


@pytest.mark.full(
    "tests/cluster/test_slurm.py::test_a_submit_that_is_killed_after_sbatch_is_found_again",
    "tests/local/test_failures.py::test_a_submit_killed_between_two_agents_is_named_at_once_by_the_next_command",
    "tests/unit/supervisor/test_decide.py::test_what_is_done",
)
def test_a_submit_that_is_killed_before_sbatch_ends_the_run(alice: User) -> None:
    run = _submit_and_kill(alice, ":")
    state = run.end()
    assert (state["state"], state["verdict"]["cause"]) == ("failed", "infra")
    assert "orch submit ended before it had started an agent" in state["verdict"]["reason"]
    assert run.squeue("%i") == ""


def _submit_and_kill(alice: User, before: str) -> Run:
    """The run of a submit that is killed by the sbatch that it calls, after that has done something."""
    script = alice.program("sbatch", f"{before}\nkill -9 $PPID")
    alice.write("count.py", COUNT)
    named = alice.write("count.yaml", "script: count.py\nargs: [8]\nlauncher: exec\n")
    done = alice.orch("submit", named, "-p", alice.write("p.yaml", PROFILE), PATH=f"{script}:/usr/bin:/bin")
    assert done.code == -signal.SIGKILL
    (run_id,) = [row["run_id"] for row in alice.orch("status", "--json").json]
    return Run(alice, run_id)


def test_what_slurm_refuses_is_one_clear_message(alice: User) -> None:
    said = alice.refused("kind: slurm\nnproc_per_node: 1\npartition: nowhere\n")
    assert "Slurm has no partition 'nowhere'" in said
    assert "sinfo lists the partitions" in said
    assert alice.orch("status", "--json").json == []


@pytest.mark.parametrize(
    ("profile", "numbers"),
    [
        ("partition: short\ntime: 1h\n", r": short gives \d+ min, the profile asks for 60"),
        ("nodes: 40\n", r": main has \d+ nodes, the profile asks for 40"),
        ("cpus_per_task: 99\n", r": main: n\[1-4\] have \d+ cores, 99 asked"),
    ],
)
def test_what_slurm_takes_but_cannot_start_is_said(alice: User, profile: str, numbers: str) -> None:
    """With EnforcePartLimits as it is by default, such jobs are queued."""
    named = alice.write("hello.yaml", "command: [hostname]\n")
    where = alice.write("p.yaml", f"kind: slurm\nnproc_per_node: 1\n{profile}")
    done = alice.orch("submit", named, "-p", where)
    assert re.search(
        rf"note: Slurm job \d+ pending: .* \(Partition\w+\); the run may never start{numbers}\n", done.err
    ), done.err
    run = Run(alice, done.out.strip())
    assert run.status()["state"] == "pending"
    assert alice.orch("cancel", run.run_id).code == 0


def test_rank_0_may_save_long_after_the_others_have_left(alice: User) -> None:
    """Longer than Slurm's KillWait: agents leave together, and srun waits for all of them."""
    named = alice.write("save.yaml", "command: [bash, -c, 'if [ $RANK = 0 ]; then sleep 13; fi']\n")
    done = alice.orch("submit", named, "-p", alice.write("p.yaml", PROFILE), "--follow")
    assert done.code == 0, done.err
    run = Run(alice, alice.orch("status", "--json").json[0]["run_id"])
    assert run.in_accounting() == "COMPLETED"
    (used,) = alice.orch("usage", run.run_id, "--json").json  # Slurm looks at memory every 30 s: there may be none
    job = used["job"]
    assert (used["run"], job["state"], job["limit_seconds"]) == (run.run_id, "COMPLETED", 3600.0)
    assert job["seconds"] >= 13
    assert job["core_seconds"] > 0
    line = alice.orch("usage", run.run_id).out.splitlines()[-1]
    said = r"Slurm job \d+ COMPLETED, .* of 1 h 00 min, \d+ % of \d+ cores.*"
    assert re.fullmatch(f"{run.run_id}: {said}", line), line


def test_a_program_that_fails_is_the_users_error(alice: User) -> None:
    named = alice.write("bad.yaml", "command: [bash, -c, 'echo no luck; exit 17']\n")
    done = alice.orch("submit", named, "-p", alice.write("p.yaml", PROFILE), "--follow")
    assert done.code == 100
    state = alice.orch("status", "last", "--json").json
    assert (state["state"], state["verdict"]["cause"], state["verdict"]["code"]) == ("failed", "user_error", 17)
    assert state["restarts"] == 0


def test_a_controller_that_is_away_ends_nothing(alice: User) -> None:
    gate = f"{FOLDER}/open"
    waits = alice.write("waits.yaml", f'command: [sh, -c, "echo here; until [ -e {gate} ]; do sleep 0.2; done"]\n')
    done = alice.orch("submit", waits, "-p", alice.write("p.yaml", PROFILE), "--json")
    run = Run(alice, done.json["run_id"])
    run.wait_for("here")
    wait_until(lambda: run.status()["state"] == "running", "the run")
    pid = alice.testbed.output("ctl", "cat", "/run/slurmctld.pid", user="root")
    alice.testbed.undo.callback(_start_controller, alice.testbed)
    alice.testbed.output("ctl", "kill", pid, user="root")
    wait_until(lambda: alice.testbed.run("ctl", "scontrol", "ping").code != 0, "the controller's end")
    state = run.status()
    assert (state["state"], state["verdict"]) == ("running", None)
    assert "Slurm can't be asked" in state["detail"]
    _start_controller(alice.testbed)
    alice.write("open", "")
    assert run.end()["state"] == "succeeded"


def _start_controller(testbed: Control) -> None:
    """Start slurmctld, and return when its nodes have registered: until then it refuses jobs of several nodes."""
    if testbed.run("ctl", "scontrol", "ping").code != 0:
        testbed.output("ctl", "slurmctld", user="root")
        wait_until(lambda: testbed.run("ctl", "scontrol", "ping").code == 0, "slurmctld")
        wait_until(lambda: set(testbed.output("ctl", "sinfo", "-h", "-N", "-o", "%T").split()) <= WORKING, "its nodes")


def test_a_folder_that_the_nodes_do_not_share_is_named(alice: User) -> None:
    named = alice.write("hello.yaml", "command: [hostname]\n")
    done = alice.orch("submit", named, "-p", alice.write("p.yaml", f"{PROFILE}workdir: ~/mine\n"), "--follow")
    assert done.code == 100
    why = alice.orch("why", "last").out
    assert (
        "its first node can't write to the run's folder, which has to be shared with the login node: set `workdir`"
        in why
    )


@pytest.mark.full(
    "tests/cluster/test_slurm.py::test_a_folder_that_the_nodes_do_not_share_is_named",
)
def test_a_run_directory_elsewhere_is_linked(alice: User) -> None:
    done = alice.count(4, f"workdir: {FOLDER}/work\n").end()
    real = alice.testbed.file("ctl", f"{FOLDER}/work/runs/{done['run_id']}")
    assert (real / "rank0.done").exists()
    assert alice.orch("rm", done["run_id"]).code == 0
    assert not real.exists()
    assert alice.orch("status", "--json").json == []


def test_any_number_of_runs_costs_one_look(alice: User) -> None:
    """Counted by a squeue on PATH that keeps a list."""
    real = alice.testbed.output("ctl", "which", "squeue")
    folder = alice.program("squeue", f'echo look >>{FOLDER}/looks\nexec {real} "$@"')
    runs = [alice.count(1, "sbatch: {begin: now+1hour}\n") for _ in range(3)]
    code = "from orchestrator.looking.run import grouped; from orchestrator.runs.store import state_root; " \
           "print([str(state.state) for ((_, state),) in grouped(state_root(), everything=True, limit=9)])"  # fmt: skip
    done = alice.testbed.python("ctl", "-c", code, ORCH_HOME=ORCH, PATH=f"{folder}:/usr/bin:/bin")
    assert done.out.strip() == str(["pending"] * 3), done.err
    assert alice.testbed.file("ctl", f"{FOLDER}/looks").read_text() == "look\n"
    for run in runs:
        assert alice.orch("cancel", run.run_id).code == 0


def test_doctor_and_nodes_ask_slurm(alice: User) -> None:
    where = alice.write("p.yaml", PROFILE)
    done = alice.orch("doctor", "-p", where)
    assert (done.code, "all checks passed" in done.out) == (0, True), done.out
    assert "short      " in alice.orch("nodes", "-p", where).out
    bad = alice.write("bad.yaml", f"{PROFILE}partition: short\ncpus_per_task: 99\n")
    done = alice.orch("doctor", "-p", bad)
    assert done.code == 1
    assert "partition: short gives 10 min, the profile asks for 60" in done.out
    assert (
        "sbatch: the cluster does not have 3 nodes with the resources that the profile requests (cpus_per_task 99)"
        in done.out
    )
