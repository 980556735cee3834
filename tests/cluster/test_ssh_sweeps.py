"""Sweeps over SSH, and runs that wait for others: the laptop's supervisor starts each in its turn."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import DIALLED, HOLD, Lab

HOSTS = ("n1", "n2")
# Each point leaves a result and a model when it is let; one of them fails.
POINT = """
import json, os, sys, time
point = int(os.environ["POINT"])
while not os.path.exists(os.path.expanduser("~/go")):
    time.sleep(0.05)
print("point", point, "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
if os.environ["RANK"] == "0":
    with open(os.environ["ORCH_RESULT_FILE"], "w") as file:
        json.dump({"accuracy": point / 10}, file)
    with open("model.pt", "w") as file:
        file.write(str(point))
    sys.exit(3 if point == 2 else 0)
"""
# Rank 0 says how well it goes; a bad trial goes on until it is asked to stop.
TRIAL = """
import json, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
x = float(sys.argv[1].partition("=")[2])
if os.environ["RANK"] == "0":
    with open(os.environ["ORCH_METRICS_FILE"], "a") as file:
        for step in range(1, 9):
            file.write(json.dumps({"kind": "eval", "step": step, "loss": (x - 3) ** 2 + 1 / step}) + "\\n")
if x < 0:
    signal.sigwait({signal.SIGTERM})
"""


@pytest.fixture
def lab(testbed: Control) -> Lab:
    lab = Lab(testbed)
    lab.profile(hosts=list(HOSTS))
    return lab


def submit_sweep(lab: Lab, job: str, values: str) -> tuple[str, list[str]]:
    """The sweep's id, and those of its runs."""
    done = lab.orch("submit", job, "-p", "lab.yaml", "--sweep", f"job.env.POINT={values}", "--parallel", "1", "--json")
    assert done.code == 0, done.err
    assert "this machine starts the waiting runs: leave it on" in done.err
    assert "may go off" not in done.err
    return done.json["sweep"], done.json["runs"]


def test_points_go_one_at_a_time_are_ranked_and_others_wait_for_them(lab: Lab) -> None:
    for host in HOSTS:
        lab.control.file(host, "/home/alice/.bashrc").write_text(DIALLED)
    job = lab.job("point", POINT, launcher="exec", env={"POINT": "5"})
    sweep, points = submit_sweep(lab, job, "3,2,7")
    ends = {
        after: lab.submit(job, "-p", "lab.yaml", "--after", after)
        for after in (sweep, f"{sweep}:any", f"{points[1]}:ok", f"{points[1]}:any")
    }
    assert lab.status(ends[sweep])["detail"] == f"waits for all of {sweep} to succeed"
    for host in HOSTS:
        lab.control.file(host, "/home/alice/go").touch()
    assert lab.wait(sweep).code == 100
    assert "3 runs: 2 succeeded, 1 failed" in lab.orch("status").out
    times = [
        (lab.events(point, "agent_started")[0]["time"], lab.events(point, "agent_ended")[-1]["time"])
        for point in points
    ]  # fmt: skip
    assert times == sorted(times)
    assert all(ended <= began for (_, ended), (began, _) in pairwise(times))
    assert lab.log(points[2], 1) == "point 7 rank 1 of 2\n"
    best = lab.orch("best", "--metric", "accuracy", sweep, "--json").json
    assert [(row["run_id"], row["values"]["job.env.POINT"]) for row in best] == [
        (points[2], "7"), (points[0], "3"), (points[1], "2"),
    ]  # fmt: skip
    pulled = lab.orch("pull", sweep, "--best", "--metric", "accuracy", "--to", "best")
    assert pulled.err.startswith(f"{points[2]} is the best of {sweep}"), pulled.err
    assert (lab.home / "best/outputs/model.pt").read_text() == "7"
    assert {after: lab.wait(run).code for after, run in ends.items()} == {
        sweep: 103, f"{sweep}:any": 0, f"{points[1]}:ok": 103, f"{points[1]}:any": 0,
    }  # fmt: skip
    assert [lab.control.file(host, "/home/alice/dialled").read_text() for host in HOSTS] == ["one\n", "one\n"]
    for after in (sweep, f"{points[1]}:ok"):
        assert f"{points[1]}, after which it was to start, failed" in lab.orch("why", ends[after]).out
    for run in (*points, *ends.values()):
        lab.assert_nothing_left(run, HOSTS)


@pytest.mark.full(
    "tests/cluster/test_ssh_sweeps.py::test_points_go_one_at_a_time_are_ranked_and_others_wait_for_them",
)
def test_a_sweep_cancelled_half_way_ends_all_its_points(lab: Lab) -> None:
    sweep, points = submit_sweep(lab, lab.job("hold", HOLD, launcher="exec", limits={"grace": "5s"}), "0..2")
    lab.until_said(points[0], "holding")
    assert [state["state"] for state in lab.orch("status", sweep, "--json").json["points"]] == [
        "running", "pending", "pending",
    ]  # fmt: skip
    done = lab.orch("cancel", sweep)
    assert (done.code, done.err) == (0, "cancelled 3 runs\n  0 processes left\n")
    assert lab.wait(sweep).code == 103
    assert not any(lab.events(point, "agent_started") for point in points[1:])
    for point in points:
        lab.assert_nothing_left(point, HOSTS)


def test_a_search_gives_values_and_stops_what_is_bad(lab: Lab) -> None:
    space = {"seed": 4, "space": {"--x": {"low": -10.0, "high": 10.0}}}  # draws 6.2, 6.0, -3.8, 1.0
    job = lab.job("trial", TRIAL, launcher="exec", metric="loss", search=space, limits={"grace": "20s"})
    search = ("--search", "random", "--trials", "4", "--stop", "asha")
    done = lab.orch("submit", job, "-p", "lab.yaml", *search, "--json")
    assert done.code == 0, done.err
    sweep, points = done.json["sweep"], done.json["runs"]
    waited = lab.wait(sweep)
    assert (waited.code, waited.err) == (0, f"{sweep} succeeded: 4 runs: 3 succeeded, 1 stopped early\n")
    assert "stopped by its search at step 1: with loss" in lab.orch("why", points[2]).out
    assert "4 of 4 trials have ended; best" in lab.orch("status", sweep).out
    assert lab.orch("best", sweep, "--json").json[0]["run_id"] == points[3]
    for run in points:
        lab.assert_nothing_left(run, HOSTS)
