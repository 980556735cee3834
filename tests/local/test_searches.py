"""A search on this machine: real trials of a quadratic, a supervisor that is killed, a trial that is stopped."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.looking.run import wait
from orchestrator.node.system.processes import send_signal, wait_gone
from orchestrator.runs.searches import Asked, journal, read_search, search_in
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir
from orchestrator.runs.sweeps import points_in
from orchestrator.supervisor import study
from tests.patience import PATIENCE
from tests.testbed.machine import wait_until

from .conftest import Orch
from .test_results import supervisor_of

# The first trial waits at a gate. One with x < 0 goes on for ever, unless it is asked to stop.
QUADRATIC = """
import json, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
if os.environ["ORCH_RUN_ID"].endswith(".0"):
    open(os.environ["GATE"]).read()
x = float(sys.argv[1].partition("=")[2])
with open(os.environ["ORCH_METRICS_FILE"], "a") as file:
    for step in range(1, 9):
        file.write(json.dumps({"kind": "eval", "step": step, "loss": (x - 3) ** 2 + 1 / step}) + "\\n")
print("x", x, flush=True)
if x < 0:
    signal.sigwait({signal.SIGTERM})
    print("saved", flush=True)
"""
JOB = """
script: quadratic.py
name: quadratic
metric: loss
limits: {grace: 60s}
search:
  seed: 4   # draws 6.2, 6.0, -3.8, 1.0
  space:
    --x: {low: -10.0, high: 10.0}
"""


@pytest.mark.timeout(600)
def test_a_search_goes_on_after_a_kill_and_stops_what_is_bad(orch: Orch, project: Callable[..., Path]) -> None:
    folder = project(quadratic_py=QUADRATIC, job_yaml=JOB)
    os.mkfifo(gate := folder.parent / "gate")
    done = orch(
        "submit", str(folder / "job.yaml"), "-p", "local", "--set", "profile.nproc_per_node=1", "--json",
        "--env", f"GATE={gate}", "--search", "random", "--trials", "4", "--stop", "asha",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "search: 4 trials by random, loss the lowest; bad ones are stopped by asha" in done.err
    sweep = done.json["sweep"]
    runs, place = points_in(orch.home, sweep), orch.home / "sweeps" / sweep
    search = read_search(place)
    _until_running(runs[0])
    assert journal(place, search) == [Asked(0, study.ask(search, [], 0))]
    killed = supervisor_of(orch)
    send_signal(killed, signal.SIGKILL)
    assert wait_gone([killed], PATIENCE) == []
    assert orch("status", sweep, "--json").json["points"][3]["values"] == {}  # which starts another supervisor
    gate.write_text("")
    done = orch("wait", sweep, timeout=2 * PATIENCE)
    assert (done.code, done.err) == (0, f"{sweep} succeeded: 4 runs: 3 succeeded, 1 stopped early\n")
    wait_until(lambda: all(run.ending() for run in runs), "the verdicts")  # which follow the last words of the agents
    found = search_in(orch.home, sweep)
    assert found is not None
    assert [trial.values for trial in found[1]] == [study.ask(search, [], number) for number in range(4)]
    assert [trial.end for trial in found[1]] == ["complete", "complete", "stopped", "complete"]
    records = [run.record() for run in runs]
    assert [record.values for record in records] == [{"--x": str(trial.values["--x"])} for trial in found[1]]
    assert records[3].job.args == (args := (f"--x={found[1][3].values['--x']}",))
    assert orch("logs", runs[3].run_id).out == f"x {args[0].partition('=')[2]}\n"
    assert orch("best", "--json").json[0]["run_id"] == runs[3].run_id
    page = orch("status", sweep).out
    assert "  search     random, loss the lowest: 4 of 4 trials have ended; best" in page
    assert "stopped by its search at step 1: with loss" in page
    stopped = orch("why", runs[2].run_id)
    assert f"{runs[2].run_id} cancelled (stopped early)" in stopped.out
    assert "was not among the best" in stopped.out
    assert "saved" in orch("logs", runs[2].run_id).out
    assert json.loads((runs[2].path / "verdict.json").read_text())["cause"] == "stopped_early"
    assert orch("rm", sweep).code == 0
    assert [*(orch.home / "sweeps").iterdir(), *(orch.home / "runs").iterdir()] == []


def test_trials_that_are_cancelled_while_they_wait_have_ended_too(orch: Orch, project: Callable[..., Path]) -> None:
    job = "command: [sleep, '600']\nmetric: loss\nsearch: {space: {job.env.N: {low: 1, high: 9}}}\n"
    folder = project(job_yaml=job)
    done = orch(
        "submit",
        str(folder / "job.yaml"),
        "-p",
        "local",
        "--search",
        "random",
        "--trials",
        "3",
        "--parallel",
        "1",
        "--json",
    )
    assert done.code == 0, done.err
    _until_running(points_in(orch.home, done.json["sweep"])[0])
    assert orch("cancel", done.json["sweep"]).code == 0
    assert orch("wait", done.json["sweep"]).code == 103
    runs = points_in(orch.home, done.json["sweep"])
    wait_until(lambda: all(run.ending() for run in runs), "the verdicts")  # which follow the last words of the agents
    page = orch("status", done.json["sweep"]).out
    assert "random, loss the lowest: 3 of 3 trials have ended, 3 without a value\n" in page


def test_what_cannot_be_a_search_leaves_nothing(orch: Orch, project: Callable[..., Path]) -> None:
    folder = project(quadratic_py=QUADRATIC, job_yaml=JOB)
    tpe = ("--search", "tpe", "--trials", "3")
    for options, says in (
        (("--search", "grid", "--trials", "3"), "'grid' is not one of 'tpe', 'random'"),
        (("--search", "tpe", "--trials", "0"), "0 is not in the range x>=1"),
        (("--search", "tpe"), "--search needs the number of its trials"),
        (("--trials", "3"), "--trials only applies to a search"),
        (("--stop", "asha"), "--stop only applies to a search"),
        ((*tpe, "--sweep", "job.env.N=1,2"), "--sweep and --search can't be used together"),
        ((*tpe, "--follow"), "--follow follows one run, not a sweep"),
        ((*tpe, "--set", "job.search=null"), "no `search` section"),
        ((*tpe, "--set", "job.metric=null"), "names no metric"),
        ((*tpe, "--set", "job.checkpoint.dir=/tmp/there"), "several points would write their checkpoints"),
        ((*tpe, "--set", "job.search.space={job.resources.cpus: [1, x]}"), "search.space, "),
    ):
        done = orch("submit", str(folder / "job.yaml"), "-p", "local", *options)
        assert (done.code, says in done.err) == (2, True), done.err
    assert not (orch.home / "runs").exists()
    shown = orch("submit", str(folder / "job.yaml"), "-p", "local", *tpe, "--dry-run")
    assert shown.out.splitlines()[:2] == ["KEY  VALUES", "--x  -10.0 to 10.0"]


def _until_running(run: RunDir) -> None:
    def look(state: RunState) -> None:
        if state.state == "running":
            raise StopIteration

    with pytest.raises(StopIteration):
        wait(run, look, timeout=PATIENCE)
