"""Paths between nodes that fail while this machine reaches both: one direction, large packets only, and then named."""

from __future__ import annotations

import os

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import STEPS, TORCH_SLOW_AT_FIRST, Lab, settled
from tests.cluster.test_ssh_faults import assert_it_went_on, training

FULL = bool(os.environ.get("SOAK"))
SMALL = 1000  # bytes; TLS's handshake and heartbeats get through
LINK = {"join": 60, "link": 8}


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def forming(lab: Lab) -> str:
    """A run on n1 and n2, just submitted."""
    job = lab.job("steps", STEPS, args=["60", "0.1"], limits=LINK)
    return lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"]))


@pytest.mark.full(
    "tests/cluster/test_outputs.py::test_what_a_machine_has_that_a_spare_replaced_is_said_and_fetched",
    "tests/unit/backends/agents/test_relaunch.py::test_without_a_spare_who_can_not_be_reached_is_waited_for_with_the_reason",
)
def test_a_node_that_hears_nothing_of_node_0_is_replaced_by_a_spare(lab: Lab) -> None:
    run = training(lab, limits=LINK, spares=["n3"])
    lab.control.ignore("n2", "n1")
    assert_it_went_on(lab, run)
    assert [(event["host"], event["by"]) for event in lab.events(run, "replaced")] == [("n2", "n3")]
    (again,) = lab.events(run, "starting_again")
    assert again["reason"].startswith("node 1 (n2) was lost: no heartbeat for ")
    assert {node["host"] for node in lab.status(run)["nodes"]} == {"n1", "n3"}


if FULL:  # the sample has each of these in part: probe and relaunch are tested alone

    def test_without_a_spare_the_way_is_waited_for_and_named_and_no_budget_is_used_meanwhile(lab: Lab) -> None:
        run = training(lab, limits=LINK)
        lab.control.ignore("n1", "n2")
        lab.until(run, "waiting_for_hosts")
        state = lab.status(run)
        assert (state["state"], state["restarts"]) == ("restarting", 1)
        assert state["detail"].startswith("waiting for n2: n2: it can't reach n1: n1: timed out")
        lab.control.ungate("n1")
        assert_it_went_on(lab, run)
        lab.assert_nothing_left(run)

    def test_a_path_for_small_packets_only_is_named_before_any_rank_starts(lab: Lab) -> None:
        for host, other in (("n1", "n2"), ("n2", "n1")):
            lab.control.ignore(host, other, SMALL)
        run = forming(lab)
        assert lab.wait(run).code == 100
        verdict = lab.orch("why", run, "--json").json
        assert "it can be reached, but 64 KiB that were sent there did not come back" in verdict["reason"]
        assert verdict["hint"].startswith("give all network interfaces between the nodes the same MTU")
        assert lab.events(run, "go") == []
        lab.assert_nothing_left(run)

    def test_a_path_that_takes_small_packets_only_from_now_on_is_waited_for(lab: Lab) -> None:
        run = training(lab, total=200, limits=LINK)
        for host, other in (("n1", "n2"), ("n2", "n1")):
            lab.control.ignore(host, other, SMALL)
        settled(lambda: lab.events(run, "waiting_for_hosts"), "the wait for the path")
        assert "is the MTU smaller on the way?" in lab.status(run)["detail"]
        for host in ("n1", "n2"):
            lab.control.ungate(host)
        assert lab.wait(run).code == 0, lab.orch("why", run).out
        assert lab.status(run)["restarts"] == 1
        lab.assert_nothing_left(run)


@pytest.mark.full(
    "tests/unit/node/agent/checkpoints/test_replica.py::test_after_a_copy_that_failed_or_is_late_no_save_waits_any_more_and_that_is_said_once",
)
def test_a_path_that_takes_small_packets_only_in_mid_run_costs_the_second_copies_and_nothing_else(lab: Lab) -> None:
    fields = {"limits": {"join": 60}, "hang": {"train": 10, "medians": 1}}
    job = lab.job("steps", TORCH_SLOW_AT_FIRST, args=["60", "0.1"], **fields)
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"]))
    second = lab.control.file("n2", f"/home/alice/.orch/runs/{run}/checkpoints")
    settled((second / "step_00000005/COMMIT").exists, "the second copy of step 5, on n2")
    lab.control.ignore("n2", "n1", SMALL)
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert lab.status(run)["restarts"] == 0
    assert [event for event in lab.events(run, "stall") if event["full"]] == []
    log = lab.log(run)
    assert log.count("WARNING: The second copy of the last checkpoint is still not complete after 5 s") == 1, log
    assert "step_00000060" in log
    lab.assert_nothing_left(run)
