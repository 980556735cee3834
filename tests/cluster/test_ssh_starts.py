"""A run's first start over SSH is its supervisor's: one connection a host, whoever of the two processes is killed."""

from __future__ import annotations

import os
import signal
import sys
from typing import IO

import pytest

from orchestrator.node.system.processes import identify
from tests.cluster.control import Control
from tests.cluster.lab import DIALLED, HOLD, LAPTOP, Lab, kill, settled
from tests.terminal import terminal
from tests.testbed.layout import REPO
from tests.testbed.machine import ENVIRONMENT

HOSTS = ("n1", "n2", "n3")


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def assert_nothing_left(lab: Lab) -> None:
    for host in HOSTS:
        settled(lambda host=host: not lab.agents(host), f"the end of the agent on {host}")
        assert not list(lab.control.file(host, "/home/alice").glob(".orch/runs/*"))


def test_each_host_is_dialled_once_for_the_start_the_following_and_the_end(lab: Lab) -> None:
    for host in HOSTS:
        lab.control.file(host, "/home/alice/.bashrc").write_text(DIALLED)
    run = lab.submit(lab.job("hold", HOLD), "--profile", lab.profile())
    lab.until_said(run, "holding")
    assert len(lab.supervisor()) == 1
    second = lab.submit(lab.job("hold", HOLD), "--profile", lab.profile(hosts=["n1"], slots=4))
    for each in (second, run):
        assert lab.orch("cancel", each, "--now").code == 0
        assert lab.wait(each).code == 103
    dialled = {host: lab.control.file(host, "/home/alice/dialled").read_text().count("one") for host in HOSTS}
    # A cancel dials too, to be the first who tells the agents. The second submit finds a supervisor at work.
    assert dialled == {"n1": 4, "n2": 2, "n3": 2}
    lab.assert_nothing_left(run)


def close_n3(lab: Lab) -> None:
    """Have n3 not answer, for which the laptop waits longer than a test takes."""
    lab.write(".ssh/config", "Host n3\n  ConnectTimeout 60\n")
    lab.control.gate("n3", "n2")


def starting(lab: Lab, *argv: str) -> tuple[int, IO[str]]:
    """A submit that awaits n3's answer, and has n1's and n2's; the pid of its process, and what it prints."""
    close_n3(lab)
    printed = lab.control.start(LAPTOP, *argv).stdout
    sent = [lab.control.file(host, "/home/alice/.orch/runs") for host in ("n1", "n2")]
    settled(lambda: all(list(folder.glob("*/code")) for folder in sent), "the code on n1 and n2")
    (supervisor,) = lab.supervisor()
    (submit,) = (
        each.pid
        for each in lab.control.processes(LAPTOP, lab.user)
        if each.command.startswith("python") and each.pid != supervisor
    )
    assert printed is not None
    return submit, printed


def test_a_run_whose_submit_is_killed_meanwhile_is_started_by_its_supervisor_which_holds_its_start(lab: Lab) -> None:
    submit, _ = starting(lab, *lab.argv("submit", lab.job("hold", HOLD), "--profile", lab.profile()))
    kill([submit])
    (folder,) = (lab.home / ".local/state/orch/runs").iterdir()
    lab.control.ungate("n3")
    lab.until_said(folder.name, "holding")
    assert [event["kind"] for event in lab.events(folder.name, "submitted")] == ["submitted"]
    assert lab.orch("cancel", folder.name, "--now").code == 0
    assert lab.wait(folder.name).code == 103
    assert_nothing_left(lab)


NOTEBOOK = """
import sys
import orchestrator as orch
try:
    orch.submit(*sys.argv[1:])
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.read()
"""


@pytest.mark.full(
    "tests/cluster/test_ssh_starts.py::test_a_run_whose_submit_is_killed_meanwhile_is_started_by_its_supervisor_which_holds_its_start",
)
def test_a_submit_that_is_interrupted_in_a_notebook_cancels_its_run_though_the_notebook_lives_on(lab: Lab) -> None:
    lab.write("notebook.py", NOTEBOOK)
    argv = ("env", f"PYTHONPATH={REPO}", sys.executable, "notebook.py", lab.job("hold", HOLD), lab.profile())
    notebook, printed = starting(lab, *argv)
    os.kill(notebook, signal.SIGINT)
    assert printed.readline() == "interrupted\n"  # before n3 answers
    (folder,) = (lab.home / ".local/state/orch/runs").iterdir()
    lab.control.ungate("n3")
    settled((folder / "verdict.json").exists, "the verdict, which nobody asks for")
    settled(lambda: not lab.supervisor(), "the supervisor's end")
    assert_nothing_left(lab)
    assert lab.wait(folder.name).code == 103
    assert identify(notebook) is not None


@pytest.mark.full(
    "tests/cluster/test_ssh_starts.py::test_a_run_whose_submit_is_killed_meanwhile_is_started_by_its_supervisor_which_holds_its_start",
)
def test_a_supervisor_that_is_killed_meanwhile_is_told_by_the_submit_and_no_run_is_left(lab: Lab) -> None:
    close_n3(lab)
    argv = lab.control.argv(LAPTOP, *lab.argv("submit", lab.job("hold", HOLD), "--profile", lab.profile()), TERM="dumb")
    with terminal(argv, ENVIRONMENT) as screen:
        screen.until("waiting for an answer from n")  # n3's for ever, the others' may be slow
        (supervisor,) = lab.supervisor()
        kill([supervisor])
        lab.control.ungate("n3")  # the submit looks there for what is left
        assert screen.code() == 1
    said = " ".join(screen.text.split())
    assert "the supervisor ended before it had started the run" in said
    assert "supervisor.log" in said
    assert lab.orch("status", "hold").code == 102
    assert_nothing_left(lab)


def test_a_run_that_is_refused_is_its_submits_alone_to_end_and_nobody_is_notified(lab: Lab) -> None:
    told = [{"on": ["failed"], "command": ["sh", "-c", "cat >>~/told"]}]
    job, profile = lab.job("hold", HOLD, notify=told), lab.profile(python="/nowhere/python")
    for _ in range(3):
        done = lab.orch("submit", job, "--profile", profile)
        assert done.code == 1
        assert "/nowhere/python" in done.err
        settled(lambda: not lab.supervisor(), "the supervisor's end")
    assert not (lab.home / "told").exists()
    assert_nothing_left(lab)
