"""Runs on a real Grid Engine: from the submit to the verdict, through limits, requeues, arrays and lost hosts."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass

import pytest

from tests.cluster.control import Control
from tests.cluster.scheduler import COUNT, FOLDER, ORCH, Person, Started
from tests.patience import PATIENCE
from tests.testbed.layout import REPO
from tests.testbed.machine import wait_until

pytestmark = [
    pytest.mark.cluster("sge", nodes=8),
    pytest.mark.full(because="only `make test-all` installs Grid Engine; tests/unit/backends/sge shows the parsers"),
]

PROFILE = "kind: sge\nnodes: 3\nnproc_per_node: 1\npe: each\ntime: 1h\n"


@dataclass(frozen=True)
class User(Person):
    queue = ("qstat", "-u", "alice")

    def count(self, steps: int, profile: str = PROFILE, *options: str, job: str = "") -> Run:
        return Run(self, self.counting(steps, profile, *options, job=job))


@dataclass(frozen=True)
class Run(Started):
    @property
    def job(self) -> str:
        return str(self.status()["job"])

    def logs(self) -> str:
        """Return the logs of the job, for a test that fails."""
        folder = self.user.testbed.file("ctl", f"{self.path}/batch")
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(folder.glob("*.log")))


@pytest.fixture
def alice(testbed: Control) -> User:
    return User(testbed)


def test_the_dry_run_is_the_script_that_is_submitted_and_checked(alice: User) -> None:
    run = alice.count(1)
    page = alice.orch("submit", f"{FOLDER}/count.yaml", "-p", f"{FOLDER}/p.yaml", "--dry-run", "--check").out
    shown = page.partition("the batch script, for qsub:\n")[2].partition('exit "$code"')[0]
    shown = "\n".join(line[2:] for line in shown.splitlines())
    submitted = run.text("batch/submission.sh").partition('exit "$code"')[0]
    assert shown.strip() == submitted.replace(run.run_id, "count-dryrun").strip()
    assert "qsub -w v: Grid Engine would start it" in page
    state = run.end()
    assert state["state"] == "succeeded", (state["verdict"], run.logs())
    assert {node["host"] for node in state["nodes"]} <= set(alice.testbed.cluster.workers)
    assert len({node["host"] for node in state["nodes"]}) == 3


def test_the_doctor_and_the_queues(alice: User) -> None:
    where = alice.write("p.yaml", PROFILE)
    checks = {each["what"]: each for each in alice.orch("doctor", "-p", where, "--json").json}
    assert {what: each["level"] for what, each in checks.items()} == dict.fromkeys(checks, "ok"), checks
    assert list(checks) == ["programs", "version", "queue", "pe", "qsub", "workdir"]
    assert checks["pe"]["value"] == "each gives 1 slots on each host"
    assert re.fullmatch(r"SGE 8\.1\.9.*", checks["version"]["value"])
    (row,) = alice.orch("nodes", "-p", where, "--json").json
    assert (row["name"], row["what"], row["nodes"], row["idle"]) == ("main", "queue", 8, 8)
    wrong = alice.write("wrong.yaml", PROFILE.replace("each", "nope"))
    done = alice.orch("doctor", "-p", wrong)
    assert done.code == 1
    assert "there is no parallel environment nope" in done.out


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (f"{PROFILE}queue: nope\n", r"Grid Engine has no queue 'nope' \(qsub: .*\)\n  qconf -sql lists the queues"),
        (PROFILE.replace("each", "nope"), r"Grid Engine has no parallel environment 'nope' \(qsub: .*\)\n  qconf -spl"),
        (f"{PROFILE}project: nope\n", r"Grid Engine has no project 'nope' for you"),
        (
            f"{PROFILE}request: {{nope: 1}}\n",
            r"Grid Engine does not know a resource that the profile requests \(qsub: unknown resource .nope.\)",
        ),
    ],
)
def test_what_grid_engine_refuses_is_refused_in_its_words(alice: User, profile: str, words: str) -> None:
    assert re.search(words, alice.refused(profile))


def test_a_job_that_waits_says_why_and_leaves_the_queue_when_cancelled(alice: User) -> None:
    run = alice.count(1, PROFILE.replace("each", "mpi\nslots: 300"))
    wait_until(lambda: "only offers" in run.status()["detail"], "the scheduler's reason")
    state = run.status()
    assert state["state"] == "pending"
    assert re.search(
        r"Grid Engine job \d+ pending: .*its parallel environment has too few slots that are free: "
        r'cannot run in PE "mpi" because it only offers 64 slots \(qw\)',
        state["detail"],
    )
    done = alice.orch("cancel", run.run_id)
    assert (done.code, done.err) == (0, f"{run.run_id} cancelled\n  nothing of it had been started\n")
    assert run.status()["state"] == "cancelled"


def test_a_cancel_stops_at_a_boundary_and_proves_it(alice: User) -> None:
    run = alice.count(4000)
    for rank in range(3):  # one that is still starting has no boundary yet, and is killed
        run.wait_for("attempt 0", f"nodes/{rank}/attempt_0/rank_{rank}.log")
    done = alice.orch("cancel", run.run_id)
    assert done.code == 0, done.err
    assert "0 processes left" in done.out + done.err
    assert run.status()["state"] == "cancelled"
    assert {event["code"] for event in run.events("rank_exit")} == {95}


@pytest.mark.parametrize("state", ["suspended", "held"])
def test_a_job_in_any_state_is_cancelled(alice: User, state: str) -> None:
    run = alice.count(4000, PROFILE + ("qsub: {h: true}\n" if state == "held" else ""))
    if state == "suspended":
        run.wait_for("attempt 0")
        alice.testbed.output("ctl", "qmod", "-sj", run.job)
        wait_until(lambda: " s " in alice.testbed.output("ctl", "qstat"), "the suspended job")
    done = alice.orch("cancel", run.run_id)
    assert done.code == 0, done.err
    assert run.status()["state"] == "cancelled"
    assert not any(alice.testbed.processes(host, "alice", run.run_id) for host in alice.testbed.cluster.workers)


def test_a_program_that_fails_is_the_users_error(alice: User) -> None:
    named = alice.write("bad.yaml", "command: [sh, -c, 'echo no such data >&2; exit 7']\nretry: {user_error: 0}\n")
    done = alice.orch("submit", named, "-p", alice.write("p.yaml", PROFILE), "--json")
    state = Run(alice, done.json["run_id"]).end()
    assert (state["state"], state["verdict"]["cause"]) == ("failed", "user_error")
    assert "ended with exit code 7" in state["verdict"]["reason"]


def test_a_time_limit_stops_at_a_boundary_and_the_job_begins_again(alice: User) -> None:
    run = alice.count(60, PROFILE.replace("1h", "24s"))
    state = run.end()
    assert state["state"] == "succeeded", (state["verdict"], run.logs())
    again = run.events("starting_again")
    assert again
    assert {event["cause"] for event in again} == {"timeout"}
    assert all(event["step"] for event in again)


# Grid Engine does not start a job again on the other hosts of its last start, so these tests need many hosts.
def test_an_agent_that_is_killed_costs_one_restart(alice: User) -> None:
    run = alice.count(60)
    run.wait_for_checkpoint()
    agent = json.loads(run.text("nodes/2/agent.json"))
    alice.testbed.output(agent["host"], "kill", "-9", str(agent["pid"]))
    state = run.end()
    assert state["state"] == "succeeded", (state["verdict"], run.logs())
    assert [event["cause"] for event in run.events("starting_again")] == ["infra"]


def test_a_host_that_is_lost_costs_one_restart_elsewhere(alice: User) -> None:
    run = alice.count(60, job="retry: {infra: 2}\n")
    run.wait_for_checkpoint()
    host = json.loads(run.text("nodes/2/agent.json"))["host"]
    alice.testbed.crash(host)
    state = run.end()
    assert state["state"] == "succeeded", (state["verdict"], run.logs())
    assert host not in {node["host"] for node in state["nodes"]}


def test_the_ranks_of_a_host_are_its_slots_if_nobody_says(alice: User) -> None:
    run = alice.count(1, "kind: sge\npe: mpi\nslots: 3\nqueue: main@n2\ntime: 1h\n")
    state = run.end()
    assert state["state"] == "succeeded", (state["verdict"], run.logs())
    assert len(run.events("rank_exit")) == 3


def test_a_job_that_somebody_deletes_ends_and_its_last_checkpoint_is_there(alice: User) -> None:
    run = alice.count(4000)
    run.wait_for("attempt 0")
    alice.testbed.output("ctl", "qdel", run.job)
    state = run.end()
    assert state["state"] in ("failed", "cancelled"), state
    assert "Grid Engine job" in state["verdict"]["reason"]
    assert "time limit" not in state["verdict"]["reason"]
    assert {event["code"] for event in run.events("rank_exit")} == {95}


def test_a_sweep_is_one_array_whose_accounting_can_be_read(alice: User) -> None:
    alice.write("one.yaml", "command: [sh, -c, 'echo value $VALUE | tee model.txt']\nenv: {VALUE: none}\n")
    alice.write("p.yaml", "kind: sge\nnproc_per_node: 1\ntime: 1h\n")
    done = alice.orch("submit", f"{FOLDER}/one.yaml", "-p", f"{FOLDER}/p.yaml", "--sweep", "job.env.VALUE=a,b,c")
    assert done.code == 0, done.err
    assert re.search(r"Grid Engine job array \d+", done.err)
    sweep = alice.orch("wait", "last").err.partition(" ")[0]
    runs = [f"{sweep}.{index}" for index in range(3)]
    said = [alice.orch("logs", run).out for run in runs]
    assert all(f"value {letter}" in text for letter, text in zip("abc", said, strict=True)), said
    written = [alice.testbed.output("ctl", "cat", f"{ORCH}/runs/{run}/code/model.txt") for run in runs]
    assert written == [f"value {letter}" for letter in "abc"]
    used = r"Grid Engine job \d+_0 done, "
    wait_until(lambda: re.search(used, alice.orch("usage", runs[0]).out), "the job in the accounting")


def test_a_run_through_a_submit_host(alice: User) -> None:
    alice.testbed.output("n4", "mkdir", "-p", "/home/alice/work")
    alice.testbed.output("n4", "sh", "-c", "cat >work/count.py", stdin=COUNT)
    alice.testbed.output(
        "n4", "sh", "-c", "cat >work/count.yaml", stdin="script: count.py\nargs: [8]\nlauncher: exec\n"
    )
    far = f"{PROFILE}login: alice@ctl\nworkdir: /shared/alice/orch\npython: {sys.executable}\n"
    alice.testbed.output("n4", "sh", "-c", "cat >work/far.yaml", stdin=far)
    done = alice.testbed.orch(
        "submit", "work/count.yaml", "-p", "work/far.yaml", "--follow", host="n4", timeout=2 * PATIENCE
    )
    assert done.code == 0, done.out + done.err
    assert "submitted count-" in done.err
    assert "as Grid Engine job" in done.err
    page = alice.testbed.orch("status", "last", host="n4").out
    assert "succeeded" in page


IN_JOB = """#!/bin/sh
cd /shared/alice
orch() { "$ORCH_PYTHON" -m orchestrator.cli "$@"; }
orch doctor -p inside.yaml >doctor.txt 2>&1
orch submit count.yaml -p inside.yaml --no-wait && orch wait last
"""


def test_inside_a_job_agents_are_started_by_qrsh(alice: User) -> None:
    inside = "kind: ssh\nhosts: allocation\nstart_by: qrsh\nnproc_per_node: 1\nshared: true\n"
    inside += f"workdir: {FOLDER}/orch\n"
    alice.write("inside.yaml", inside)
    alice.write("count.py", COUNT)
    alice.write("count.yaml", "script: count.py\nargs: [8]\nlauncher: exec\n")
    env = {"ORCH_PYTHON": sys.executable, "PYTHONPATH": str(REPO), "ORCH_HOME": f"{FOLDER}/state"}
    # Round robin over eight hosts gives each of them two slots.
    options = ("-V", "-pe", "mpi", "16", "-o", f"{FOLDER}/job.log", "-j", "y")
    alice.testbed.output("ctl", "qsub", *options, alice.write("job.sh", IN_JOB), **env)
    runs, log = alice.testbed.file("ctl", f"{FOLDER}/state/runs"), alice.testbed.file("ctl", f"{FOLDER}/job.log")
    wait_until(lambda: list(runs.glob("*-*/verdict.json")), "the verdict", log, 3 * PATIENCE)
    run = next(runs.glob("*-*"))
    verdict = json.loads((run / "verdict.json").read_text())
    assert verdict["outcome"] == "succeeded", verdict
    assert json.loads((run / "run.json").read_text())["nnodes"] == 8
    assert (
        "note: programs are started by qrsh (start_by)" in alice.testbed.file("ctl", f"{FOLDER}/doctor.txt").read_text()
    )
