"""Nodes that are lost just after their run's end: it stays a success, is not run again, and names who is left."""

from __future__ import annotations

import pytest

from orchestrator.errors import EXIT_FILES_LEFT
from tests.cluster.control import Control
from tests.cluster.lab import Lab, kill, settled

# Says when it is about to end, does so when it is let, and leaves a line each time.
PROGRAM = """
import os, time
print("about to end", flush=True)
while not os.path.exists(os.path.expanduser("~/go")):
    time.sleep(0.05)
with open(os.path.expanduser("~/ends"), "a") as file:
    file.write("ran to its end\\n")
"""
HOSTS = ("n1", "n2")


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def about_to_end(lab: Lab) -> str:
    """A run on n1 and n2 that ends when it is let."""
    run = lab.submit(lab.job("ends", PROGRAM), "--profile", lab.profile(hosts=[*HOSTS]))
    lab.until_said(run, "about to end")
    lab.until(run, "started", 2)
    return run


def let_it_end(lab: Lab) -> None:
    for host in HOSTS:
        lab.control.file(host, "/home/alice/go").touch()


def assert_it_succeeded_once(lab: Lab, run: str) -> None:
    """The exit code tells whether n2 was left behind with its files."""
    assert lab.wait(run).code in (0, EXIT_FILES_LEFT), lab.orch("why", run).out
    state = lab.status(run)
    assert (state["state"], state["restarts"]) == ("succeeded", 0)
    assert lab.events(run, "starting_again") == []
    for host in HOSTS:
        assert lab.control.file(host, "/home/alice/ends").read_text() == "ran to its end\n"


def assert_n2_was_left_behind(lab: Lab, run: str) -> None:
    """It is named, keeps the run's folder, and `gc` removes that when it is back."""
    reason = lab.status(run)["verdict"]["reason"]
    assert reason == "all ranks ended well; after that, these nodes were lost: node 1 (n2)"
    assert lab.control.file("n2", f"/home/alice/.orch/runs/{run}").exists()
    lab.assert_nothing_left(run, ("n1",), away="n2")


def assert_gc_removes_what_was_left_behind(lab: Lab, run: str) -> None:
    found = lab.orch("gc", "--profile", "lab.yaml")
    assert (found.code, f"removed: run n2: ~/.orch/runs/{run}:" in found.out) == (0, True), found
    lab.assert_nothing_left(run, HOSTS, away="n2")


@pytest.mark.full(
    "tests/unit/runs/test_last_moments.py::test_nothing_runs_again_over_ssh",
    "tests/unit/node/agent/test_leader.py::test_a_node_that_is_lost_after_its_last_rank_ended_well_takes_nothing_back",
    "tests/cluster/test_ssh_faults.py::test_a_cancel_names_the_host_that_is_away_and_gc_sweeps_it_later",
)
def test_a_node_that_only_the_controller_can_not_reach_at_the_end(lab: Lab) -> None:
    lab.control.end_lost_connections("n2")
    run = about_to_end(lab)
    lab.control.gate("n2", "n1")
    settled(lambda: lab.status(run)["nodes"][1]["unreachable"], "n2 as out of reach")
    let_it_end(lab)
    assert_it_succeeded_once(lab, run)
    assert_n2_was_left_behind(lab, run)
    lab.control.ungate("n2")
    assert_gc_removes_what_was_left_behind(lab, run)


@pytest.mark.full(
    "tests/unit/runs/test_last_moments.py::test_nothing_runs_again_over_ssh",
    "tests/unit/node/agent/test_leader.py::test_a_node_that_is_lost_after_its_last_rank_ended_well_takes_nothing_back",
)
def test_a_node_that_is_off_right_after_the_end_before_anybody_has_heard_its_last_word(lab: Lab) -> None:
    run = about_to_end(lab)
    kill(lab.supervisor())
    let_it_end(lab)
    events = lab.control.file("n1", f"/home/alice/.orch/runs/{run}/nodes/0/events.jsonl")
    settled(lambda: "gang_ended" in events.read_text(), "the end of the gang")
    lab.control.crash("n2")
    assert_it_succeeded_once(lab, run)
    assert_n2_was_left_behind(lab, run)
    lab.control.boot("n2")
    assert_gc_removes_what_was_left_behind(lab, run)


@pytest.mark.full(
    "tests/unit/runs/test_last_moments.py::test_nothing_runs_again_over_ssh",
    "tests/unit/node/agent/test_leader.py::test_a_node_that_is_lost_after_its_last_rank_ended_well_takes_nothing_back",
)
def test_a_node_that_is_off_right_after_the_end_while_the_supervisor_is_at_work(lab: Lab) -> None:
    """Whether its last word was heard, and its folder removed, is a matter of milliseconds; the run's end is not."""
    run = about_to_end(lab)
    let_it_end(lab)
    lab.until(run, "gang_ended")
    lab.control.crash("n2")
    assert_it_succeeded_once(lab, run)
    lab.control.boot("n2")
    assert lab.orch("gc", "--profile", "lab.yaml").code == 0
    assert not lab.control.file("n2", f"/home/alice/.orch/runs/{run}").exists()
