"""One state folder for several machines, as a shared home is: a run is judged on the machine that it runs on."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import HOLD, LAPTOP, Lab, kill, settled

HOME = {"ORCH_HOME": "/shared/alice-orch"}


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def test_a_run_of_another_machine_is_shown_and_cancelled_and_never_given_up_for_lost(lab: Lab) -> None:
    def beside(*args: str) -> Any:
        return lab.control.orch(*args, host="n1", user="alice", **HOME)

    lab.write("here.yaml", json.dumps({"kind": "local", "nproc_per_node": 1}))
    run = lab.submit(lab.job("hold", HOLD), "--profile", "here.yaml", **HOME)
    settled(lambda: lab.orch("status", run, "--json", **HOME).json["state"] == "running", "the run")
    state = beside("status", run, "--json").json
    assert (state["state"], state["verdict"]) == ("running", None)
    assert state["detail"] == f"started on {LAPTOP}, which knows more: ssh {LAPTOP} orch status"
    assert lab.of_run(run, LAPTOP)
    done = beside("cancel", run)
    assert done.code == 0, done.err
    assert lab.orch("status", run, "--json", **HOME).json["state"] == "cancelled"
    assert lab.of_run(run, LAPTOP) == []


@pytest.mark.full(
    "tests/cluster/test_shared_home.py::test_a_run_of_another_machine_is_shown_and_cancelled_and_never_given_up_for_lost",
)
def test_a_cancel_that_nobody_takes_up_says_where_to_cancel(lab: Lab) -> None:
    lab.write("here.yaml", json.dumps({"kind": "local", "nproc_per_node": 1}))
    job = lab.job("hold", HOLD, retry={"infra": 0})
    run = lab.submit(job, "--profile", "here.yaml", **HOME)
    settled(lambda: lab.orch("status", run, "--json", **HOME).json["state"] == "running", "the run")
    (supervisor,) = lab.supervisor()
    os.kill(supervisor, signal.SIGSTOP)
    try:
        done = lab.control.orch("cancel", run, "--now", host="n1", user="alice", **HOME)
    finally:
        os.kill(supervisor, signal.SIGCONT)
    assert done.code == 1
    assert f"run {run} was started on {LAPTOP}, and orch on that machine has not acted on the cancel yet" in done.err
    assert f"ssh {LAPTOP} orch cancel {run}" in done.err
    settled(lambda: lab.orch("status", run, "--json", **HOME).json["state"] == "cancelled", "the end")


def test_a_machine_that_can_not_reach_a_runs_hosts_gives_the_run_up_to_one_that_can(lab: Lab) -> None:
    def beside(*args: str) -> Any:
        return lab.control.orch(*args, host="n1", user="alice", **HOME)

    def detail() -> str:
        return str(beside("status", run, "--json").json["detail"])

    ssh = lab.control.file("n1", "/home/alice/.ssh")
    ssh.mkdir(mode=0o700, exist_ok=True)
    (ssh / "config").write_text("Host n2\n  HostName nowhere.invalid\n")
    program = "import os, time\nprint('holding', flush=True)\nwhile not os.path.exists(os.path.expanduser('~/go')):\n"
    job = lab.job("gate", f"{program}    time.sleep(0.1)\nprint('done', flush=True)\n")
    run = lab.submit(job, "--profile", lab.profile(hosts=["n2"]), **HOME)
    settled(lambda: lab.orch("status", run, "--json", **HOME).json["state"] == "running", "the run")
    kill(lab.supervisor())
    settled(lambda: detail().startswith("n1 looks after the run and can't do its work: n2"), "the wrong machine")
    assert "to move the run, call any orch command on a machine that can" in detail()
    lab.let_go("n2")
    assert lab.orch("wait", run, **HOME).code == 0
    state = beside("status", run, "--json").json
    assert (state["state"], state["restarts"]) == ("succeeded", 0)
