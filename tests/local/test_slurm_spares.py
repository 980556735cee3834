"""A Slurm job with spares, without Slurm: an srun of the test's own starts the agents on this machine.

The nodes are addresses of the loopback network. A dead node answers nothing, and its srun does not end by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from orchestrator.node.system.processes import marked, wait_gone
from orchestrator.protocol.ranks import EXIT_REQUEUE
from tests.local.test_slurm_agents import PROGRAM, Job
from tests.patience import PATIENCE
from tests.testbed.machine import wait_until

FIRST, SECOND, SPARE = (f"127.0.0.{number}" for number in range(1, 4))
BREAKS = """
if os.environ.get("BREAKS") and os.environ["RANK"] == "1" and os.environ["ORCH_ATTEMPT"] == "0":
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
"""
SRUN = """#!{python}
import os, signal, subprocess, sys
options = dict(word[2:].partition("=")[::2] for word in sys.argv[1:] if word.startswith("--"))
hosts, run = options["nodelist"].split(","), {run!r}
dead = open(f"{{run}}/dead").read().split()
if sys.argv[-1] == "true":
    sys.exit(hosts[0] in dead)
def start(node):
    own = {{"SLURM_STEP_NODELIST": ",".join(hosts), "SLURM_NODEID": str(node)}}
    with open(options["output"].replace("%j", "17").replace("%t", str(node)), "wb") as log:
        return subprocess.Popen(sys.argv[-4:], env={{**os.environ, **own}}, stderr=log)
agents = [start(node) for node in range(len(hosts))]
def end(*_):
    for agent in agents:
        agent.kill()
    os._exit(1)
signal.signal(signal.SIGTERM, end)
left, codes = set(agents), []
while left:
    pid, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    left = {{agent for agent in left if agent.pid != pid}}
    codes.append(code if code >= 0 else 128 - code)
    for agent in left if code else ():
        agent.terminate()
while any(host in open(f"{{run}}/dead").read().split() for host in hosts):
    signal.pause()
sys.exit(max(codes))
"""


class Spared(Job):
    """A job of two nodes and a spare."""

    def __init__(self, folder: Path, **env: str) -> None:
        super().__init__(folder, PROGRAM.replace("while True:", f"{BREAKS}while True:"), **env)
        for node in range(2):
            self.change(node, has_spares=True)
        (folder / "dead").write_text("")
        programs = {"srun": SRUN.format(python=sys.executable, run=str(folder)),
                    "scontrol": f'#!/bin/sh\necho "$@" >>{folder}/scontrol\n'}  # fmt: skip
        for name, text in programs.items():
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)

    def begin(self, restarts: int = 0) -> None:
        """Start the first process of the batch script."""
        values = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "127.0.0.[1-3]", "SLURM_RESTART_COUNT": str(restarts)}
        values["PATH"] = f"{self.folder}/bin:{os.environ['PATH']}"
        run = str(self.folder)
        argv = [sys.executable, f"{run}/node.pyz", "starts", run, "%j", "srun", "--overlap"]
        agent = [sys.executable, f"{run}/node.pyz", "slurm", run]
        with open(self.folder / "slurm" / f"batch.17.{restarts}.log", "wb") as log:
            script = subprocess.Popen([*argv, *agent], env={**os.environ, **values}, stderr=log, start_new_session=True)
        self.agents += [script, script]

    def code(self) -> int:
        """Wait for the end of that process."""
        return self.agents[-1].wait(timeout=2 * PATIENCE)

    def kill(self, node: int, *, host: str = "") -> None:
        """Kill a node's agent; with a host, its machine does not answer any more."""
        (self.folder / "dead").write_text(f"{(self.folder / 'dead').read_text()} {host}")
        os.kill(self.pid(node), signal.SIGKILL)

    def pid(self, node: int) -> int:
        return int(self.events("agent_started", node)[-1]["pid"])

    def change(self, node: int, **fields: object) -> None:
        """Change fields of a node's task."""
        path = self.folder / "nodes" / str(node) / "task.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    def hosts(self) -> list[list[str]]:
        """Return the nodes of each start."""
        return [event["hosts"] for event in self.events("batch_job")]


class Make(Protocol):
    def __call__(self, **env: str) -> Spared: ...


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    jobs: list[Spared] = []

    def made(**env: str) -> Spared:
        jobs.append(Spared(tmp_path / f"spared{len(jobs)}-{os.getpid()}", **env))
        return jobs[-1]

    yield made
    for job in jobs:
        for script in set(job.agents):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
            script.wait()
        assert wait_gone(marked(job.folder.name), PATIENCE) == []


def test_a_spare_has_the_place_of_a_lost_node_in_the_same_job(make: Make) -> None:
    """A lost node costs no requeue. srun itself would wait for that node."""
    job = make(SAVES="1", UNTIL="1")
    job.begin()
    job.wait_for_rank(0)
    job.kill(1, host=SECOND)
    assert job.code() == 0, job.logs()
    assert job.hosts() == [[FIRST, SECOND], [FIRST, SPARE]]
    (again,) = job.events("starting_again")
    assert (again["start"], again["cause"], again["step"]) == (1, "infra", 1)
    (replaced,) = job.events("replaced")
    assert {name: replaced[name] for name in ("start", "lost", "host", "by")} == {
        "start": 1, "lost": 1, "host": SECOND, "by": SPARE,
    }  # fmt: skip
    assert "closed the connection" in replaced["why"]
    assert [path.name for path in sorted((job.folder / "slurm").glob("agent.*"))] == [
        f"agent.17.{start}.{node}.log" for start in range(2) for node in range(2)
    ]


def test_a_node_whose_gpu_fails_is_replaced_too(make: Make) -> None:
    job = make(SAVES="1", UNTIL="1", BREAKS="1")
    job.begin()
    assert job.code() == 0, job.logs()
    assert job.hosts() == [[FIRST, SECOND], [FIRST, SPARE]]
    (replaced,) = job.events("replaced")
    assert (replaced["lost"], replaced["by"]) == (1, SPARE)


def test_without_a_node_that_answers_the_job_is_queued_again(make: Make) -> None:
    job = make(SAVES="1", UNTIL="1")
    (job.folder / "dead").write_text(SPARE)
    job.begin()
    job.wait_for_rank(0)
    job.kill(1, host=SECOND)
    assert job.code() == EXIT_REQUEUE, job.logs()
    (job.folder / "dead").write_text("")
    job.begin(restarts=1)
    assert job.code() == 0, job.logs()
    assert [(event["start"], event["requeues"]) for event in job.events("batch_job")] == [(0, 0), (1, 1)]
    assert job.events("replaced") == []


def test_an_agent_that_is_killed_is_started_again_on_its_node_if_no_spare_is_left(make: Make) -> None:
    job = make(SAVES="1", UNTIL="1")
    (job.folder / "dead").write_text(SPARE)
    job.begin()
    job.wait_for_rank(0)
    job.kill(1)
    assert job.code() == 0, job.logs()
    assert job.hosts() == [[FIRST, SECOND]] * 2


def test_a_preemption_is_left_to_slurm_and_a_spent_budget_ends_the_job(make: Make) -> None:
    job = make(SAVES="1")
    job.begin()
    job.wait_for_rank(0)
    os.kill(job.pid(0), signal.SIGTERM)
    assert job.code() == EXIT_REQUEUE, job.logs()
    assert (job.word(0) or {})["cause"] == "preempted"
    job.begin(restarts=1)
    for attempt in (1, 2):  # the budget is one
        job.wait_for_rank(attempt)
        job.kill(1)
    assert job.code() not in (0, EXIT_REQUEUE), job.logs()
    assert [event["start"] for event in job.events("batch_job")] == [0, 1, 2]


@pytest.mark.parametrize("budget", [1, 0])
def test_the_loss_of_the_batch_script_is_a_requeue_by_another_agent(make: Make, budget: int) -> None:
    """Slurm keeps a job that is to survive the loss of a node, also without its batch script."""
    job = make(SAVES="1")
    for node in range(2):
        job.change(node, retry={"infra": budget})
    job.begin()
    job.wait_for_rank(0)
    script = job.agents[-1].pid
    (srun,) = Path(f"/proc/{script}/task/{script}/children").read_text().split()
    for pid in (script, int(srun)):
        os.kill(pid, signal.SIGKILL)
    job.kill(0, host=FIRST)
    wait_until((job.folder / "scontrol").exists, "a requeue", job.folder / "slurm" / "agent.17.0.1.log", PATIENCE)
    wait_until(lambda: "requeue 17" in (job.folder / "scontrol").read_text(), "the requeue")
    word = job.word(0) or {}
    assert (word["cause"], word["node"]) == ("infra", 1)
    assert word["reason"].endswith(f"; {FIRST} ran the batch script, so Slurm starts the job again on other nodes")
    (job.folder / "dead").write_text("")
    job.begin(restarts=1)
    if budget:
        job.wait_for_rank(1)
        return
    assert job.code() not in (0, EXIT_REQUEUE), job.logs()
    (given_up,) = job.events("gave_up")
    assert (given_up["cause"], given_up["reason"]) == ("infra", word["reason"])


def test_a_cancelled_run_is_not_started_again(make: Make) -> None:
    job = make(SAVES="1")
    job.begin()
    job.wait_for_rank(0)
    (job.folder / "cancel.json").write_text("{}")
    job.kill(1, host=SECOND)
    assert job.code() not in (0, EXIT_REQUEUE), job.logs()
    assert job.hosts() == [[FIRST, SECOND]]
