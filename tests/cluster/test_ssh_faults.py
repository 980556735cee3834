"""Machines, cables and processes that fail while ranks train over SSH: named, ended, gone on from the checkpoint."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import statistics
import subprocess
import time

import pytest

from orchestrator.runs.state import FINAL
from tests.cluster.control import Control
from tests.cluster.lab import HELD_AT_FIRST, HOLD, LAPTOP, STEPS, Lab, kill, settled, weights_after

SEED, FULL = os.environ.get("SOAK_SEED", "7"), bool(os.environ.get("SOAK"))
TOTAL = 60
PAUSE = "0.05"
FLAP = 3.5  # seconds; TCP sends again what was lost 6.2 s after it was sent first, which is to be long after the flap


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def weights(lab: Lab, run: str) -> str:
    return lab.log(run).split("weights ")[1].split()[0]


def training(
    lab: Lab, total: int = TOTAL, limits: dict[str, int] | None = None, program: str = HELD_AT_FIRST, **profile: object
) -> str:
    """A run on n1 and n2 that has a checkpoint on the laptop, and is going on."""
    job = lab.job("steps", program, args=[str(total), PAUSE], limits=limits or {"join": 60})
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"], **profile))  # type: ignore[arg-type]
    lab.until(run, "collected")
    return run


def assert_it_went_on(lab: Lab, run: str) -> None:
    """It succeeded from a checkpoint, one restart later."""
    done = lab.wait(run)
    assert done.code == 0, lab.orch("why", run).out
    assert begun(lab, run)[0] == 0 < begun(lab, run)[-1]
    assert lab.status(run)["restarts"] == 1


def assert_no_step_was_lost(lab: Lab, run: str) -> None:
    """The same, with the weights of an unbroken run."""
    assert_it_went_on(lab, run)
    assert weights(lab, run) == weights_after(TOTAL)


def test_an_agent_that_dies_before_it_has_joined_is_lost_as_any_other(lab: Lab) -> None:
    """No connection tells the leader, and `limits.join` would be over after this test's patience."""
    lab.control.ignore("n2", "n1")  # n2's agent can't join
    run = lab.submit(lab.job("steps", STEPS, args=["10", PAUSE]), "--profile", lab.profile(hosts=["n1", "n2"]))
    settled(lambda: lab.agents("n2"), "the agent on n2")
    kill(lab.agents("n2"))
    lab.control.ungate("n2")
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert [event["reason"] for event in lab.events(run, "lost_node")] == ["its agent vanished without a word"]
    assert lab.status(run)["restarts"] == 1


def test_a_cut_cable_is_named_and_the_run_goes_on_when_it_is_plugged_in_again(lab: Lab) -> None:
    lab.control.end_lost_connections("n2")
    run = training(lab)
    lab.control.cut("n2")
    settled(lambda: lab.status(run)["nodes"][1]["unreachable"], "n2 as out of reach")
    assert "node 1 (n2) out of reach for " in lab.orch("status", run).out  # also when the gang has noticed meanwhile
    lab.until(run, "lost_node")
    settled(lambda: not lab.of_run(run, "n2"), "the end of the ranks on n2, by their own agent")
    lab.until(run, "waiting_for_hosts")
    state = lab.status(run)
    assert state["state"] == "restarting"
    assert "n2" in state["detail"]
    lab.control.heal("n2")
    assert_no_step_was_lost(lab, run)
    lab.assert_nothing_left(run)


def test_a_link_that_flaps_costs_nothing(lab: Lab) -> None:
    run = training(lab, limits={"join": 60, "link": 20})  # on a busy machine it may last longer
    lab.control.cut("n2")
    time.sleep(FLAP)  # the length of the flap is what is tested
    lab.control.heal("n2")
    lab.let_go("n1")
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert weights(lab, run) == weights_after(TOTAL)
    assert lab.status(run)["restarts"] == 0
    assert lab.events(run, "lost_node") == []
    lab.assert_nothing_left(run)


def test_a_machine_that_dies_is_replaced_by_a_spare(lab: Lab) -> None:
    host = "n2"  # n1, which leads, is lost in test_ssh_elastic.py
    run = training(lab, spares=["n3"])
    lab.control.crash(host)
    settled(lambda: lab.status(run)["recovery"], "the loss of a machine")
    state = lab.status(run)
    assert (state["state"], state["recovery"]["lost"]) == ("restarting", [host])
    assert re.search(rf"{host} lost .* ago; restarting on n1, .*from step \d+", lab.orch("status").out)
    assert_no_step_was_lost(lab, run)
    first, second = lab.status(run)["attempts"]
    assert f"({host}) was lost" in first["end"]
    assert (second["resumed_from"][:16], second["end"]) == ("checkpoints/step", "succeeded")
    replaced = lab.events(run, "replaced")
    assert [(event["host"], event["by"]) for event in replaced] == [(host, "n3")]
    assert {node["host"] for node in lab.status(run)["nodes"]} == {"n1", "n2", "n3"} - {host}
    lab.control.boot(host)
    found = lab.orch("gc", "--profile", "lab.yaml")
    assert (found.code, f"removed: run {host}: ~/.orch/runs/{run}:" in found.out) == (0, True), found
    lab.assert_nothing_left(run, away=host)


@pytest.mark.full(
    "tests/unit/backends/agents/test_relaunch.py::test_without_a_spare_who_can_not_be_reached_is_waited_for_with_the_reason",
)
def test_a_lost_machine_is_waited_for_no_longer_than_the_profile_says(lab: Lab) -> None:
    run = training(lab, node_wait="3s")
    lab.control.crash("n2")
    assert lab.wait(run).code == 100
    reason = lab.orch("why", run, "--json").json["reason"]
    assert "n2 did not come back within 3 s" in reason
    assert "node 1 (n2) was lost" in reason
    lab.assert_nothing_left(run, ("n1",), away="n2")


RESTARTED = pytest.mark.full("tests/local/test_failures.py::test_a_killed_rank_is_restarted_from_the_checkpoint")


@pytest.mark.parametrize(
    "who", [pytest.param("rank", marks=RESTARTED), pytest.param("launcher", marks=RESTARTED), "agent"]
)
def test_kill_9_costs_a_restart_and_no_more(lab: Lab, who: str) -> None:
    run = training(lab)
    ranks = lab.ranks(run, "n2")
    launcher = [pid for pid in lab.of_run(run, "n2") if pid not in ranks]
    kill({"rank": ranks, "launcher": launcher, "agent": lab.agents("n2")}[who])
    assert_no_step_was_lost(lab, run)
    lab.assert_nothing_left(run)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.full(
    "tests/local/test_results.py::test_a_supervisor_killed_between_is_followed_by_one_that_tells",
    "tests/cluster/test_ssh_elastic.py::test_node_0_may_be_lost_with_its_disk_while_the_laptop_is_closed",
)
def test_a_supervisor_killed_at_any_moment_is_brought_back_by_the_next_command_and_adopts_the_run(lab: Lab) -> None:
    """While it decides on another start, starts the agents, and brings everything back."""
    chance, kills = random.Random(SEED), 20 if FULL else 4
    run = training(lab)
    kill(lab.supervisor())
    kill(lab.agents("n2"))
    settled(lambda: not lab.of_run(run, "n1"), "the end of the gang")
    while kills and lab.status(run)["state"] not in FINAL:
        time.sleep(chance.uniform(0.2, 3))  # the moment is what is tried
        if pids := lab.supervisor():
            kill(pids)
            kills -= 1
    assert_no_step_was_lost(lab, run)
    assert lab.log(run).count("weights ") == 1
    lab.assert_nothing_left(run)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.full(
    "tests/cluster/test_ssh_faults.py::test_kill_9_costs_a_restart_and_no_more",
)
def test_a_rank_killed_again_and_again_is_named_each_time_and_the_run_goes_on(lab: Lab) -> None:
    chance, trials = random.Random(SEED), 100 if FULL else 3
    job = lab.job("steps", STEPS, args=["1000000", "0.05"], retry={"infra": None})
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"]))
    killed, took = list[int](), list[float]()
    for trial in range(trials):
        settled(lambda: len(begun(lab, run)) > trial, "the ranks of this attempt")  # noqa: B023 (done in this turn)
        # Later ones than it began with are its own: what the last attempt had saved can come back after its end.
        settled(lambda: newest(lab, run) > begun(lab, run)[-1], "a checkpoint of this attempt")
        killed.append(chance.randrange(2))
        kill(lab.ranks(run, ("n1", "n2")[killed[-1]]))
        lab.until(run, "go", trial + 2)
        failed, again = lab.events(run, "attempt_failed")[-1], lab.events(run, "go")[-1]
        took.append(again["time"] - failed["time"])
    culprits = [(event["culprit"]["rank"], event["culprit"]["signal"]) for event in lab.events(run, "attempt_failed")]
    assert culprits == [(rank, "SIGKILL") for rank in killed]
    assert begun(lab, run) == sorted(set(begun(lab, run)))
    print(f"{trials} of {trials} resumed; from the failure to go: median {statistics.median(took):.2f} s")
    assert lab.orch("cancel", run, "--now").code == 0
    lab.assert_nothing_left(run)


def begun(lab: Lab, run: str) -> list[int]:
    """The steps at which the attempts of rank 0 began, as far as its log has come back."""
    return [int(each.split()[0]) for each in lab.log(run).split("begins at ")[1:] if "\n" in each]


def newest(lab: Lab, run: str) -> int:
    """The step of the newest checkpoint that the laptop has."""
    return max((event["step"] for event in lab.events(run, "collected")), default=0)


def test_a_cancel_names_the_host_that_is_away_and_gc_sweeps_it_later(lab: Lab) -> None:
    lab.control.end_lost_connections("n2")
    run = training(lab)
    lab.control.cut("n2")
    done = lab.orch("cancel", run, "--now")
    assert done.code == 1
    assert "n2: out of reach" in done.err
    assert lab.wait(run).code == 103
    settled(lambda: not lab.of_run(run, "n2"), "the end of the ranks on n2, by their own agent")
    lab.control.heal("n2")
    listed = lab.orch("gc", "--profile", "lab.yaml", "--dry-run").out
    assert f"would be ended: run n2: ~/.orch/runs/{run}" in listed
    assert lab.orch("gc", "--profile", "lab.yaml").code == 0
    lab.assert_nothing_left(run, away="n2")
    assert lab.orch("gc", "--profile", "lab.yaml").out == "nothing was left behind\n"


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.full(
    "tests/cluster/test_ssh_starts.py::test_a_run_whose_submit_is_killed_meanwhile_is_started_by_its_supervisor_which_holds_its_start",
)
def test_a_submit_killed_at_any_moment_leaves_no_orphan_and_no_second_copy(lab: Lab) -> None:
    chance = random.Random(SEED)
    trials = 20 if FULL else 3
    job, profile = lab.job("hold", HOLD, retry={"infra": 0}), lab.profile()
    for _ in range(trials):
        command = lab.control.start(LAPTOP, *lab.argv("submit", job, "--profile", profile))
        delay = chance.uniform(0.3, 1.6)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(delay)
        kill_submit(lab)
        runs = lab.orch("status", "--json").json
        for found in runs[:1]:
            until_it_is_decided(lab, found["run_id"])
        settled(lambda: counts_of_agents(lab) in ({0}, {1}), "one agent on each host, or none on any")
        for found in lab.orch("status", "--json").json:
            if found["state"] not in ("failed", "cancelled"):
                assert lab.orch("cancel", found["run_id"], "--now").code == 0
        settled(lambda: counts_of_agents(lab) == {0}, "the end of all agents")


def counts_of_agents(lab: Lab) -> set[int]:
    """How many agents the hosts have."""
    return {len(lab.agents(host)) for host in ("n1", "n2", "n3")}


def until_it_is_decided(lab: Lab, run: str) -> None:
    """Return when the run has ended, as where its submit did not finish, or goes on."""
    verdict = lab.home / ".local/state/orch/runs" / run / "verdict.json"  # written when nothing is left
    settled(lambda: lab.status(run)["state"] == "running" or verdict.exists(), f"what becomes of {run}")


def kill_submit(lab: Lab) -> None:
    """Kill the submit and the supervisor that it may have started."""
    processes = lab.control.processes(LAPTOP, lab.user)
    if pids := [each.pid for each in processes if each.command.startswith("python")]:
        kill(pids)


def test_orchs_folder_removed_on_node_0_costs_no_event_that_was_copied(lab: Lab) -> None:
    run = lab.submit(lab.job("hold", HOLD), "--profile", lab.profile(hosts=["n1", "n2"]))
    lab.until_said(run, "holding")
    shutil.rmtree(lab.control.file("n1", "/home/alice/.orch"), ignore_errors=True)
    lab.until(run, "folder_lost")
    assert lab.status(run)["state"] == "running"
    assert lab.orch("cancel", run, "--now").code == 0
    assert lab.wait(run).code == 103
    assert [event["attempt"] for event in lab.events(run, "go")] == [0]
    lab.assert_nothing_left(run)


READS_ITSELF = HELD_AT_FIRST.replace("    stops, waits = ", "    open('main.py').close()\n    stops, waits = ")


def test_the_runs_folder_removed_on_node_0_is_reported_and_is_no_error_of_the_user(lab: Lab) -> None:
    job = lab.job("steps", READS_ITSELF, args=["60", "0"], limits={"join": 60})
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"]))
    lab.until(run, "collected")
    shutil.rmtree(lab.control.file("n1", f"/home/alice/.orch/runs/{run}"), ignore_errors=True)
    assert lab.wait(run).code == 100
    verdict = lab.orch("why", run, "--json").json
    assert verdict["cause"] == "infra"
    assert f"node 0 (n1) lost the run's folder: /home/alice/.orch/runs/{run}" in verdict["reason"]
    assert {event["host"] for event in lab.events(run, "folder_lost")} == {"n1"}
    assert lab.events(run, "restart") == []
    lab.assert_nothing_left(run)
