"""Sweeps on this machine: a bounded queue that the supervisor works off, whatever is killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.looking.run import wait, wait_all
from orchestrator.looking.state import state_of
from orchestrator.node.system.processes import send_signal, wait_gone
from orchestrator.runs.dependencies import is_queued
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir
from orchestrator.runs.sweeps import points_in
from tests.patience import PATIENCE

from .conftest import Orch
from .test_results import supervisor_of

# Each point leaves a result and its model; while it runs it holds a folder that only one may hold at a time.
POINT = """
import json, os, sys
held = sys.argv[1]
os.mkdir(held)
width, lr = int(os.environ["WIDTH"]), float(os.environ["LR"])
with open(os.environ["ORCH_RESULT_FILE"], "w") as file:
    json.dump({"accuracy": width * lr, "loss": 1 - width * lr}, file)
with open("model.pt", "w") as file:
    file.write(f"width {width} lr {lr}")
print("width", width, "lr", os.environ["LR"])
os.rmdir(held)
"""
HOLD = "import time\nprint('holds', flush=True)\ntime.sleep(600)\n"


def submit(orch: Orch, job: Path, *args: str) -> list[RunDir]:
    done = orch("submit", str(job), "-p", "local", "--set", "profile.nproc_per_node=1", "--json", *args)
    assert done.code == 0, done.err
    return points_in(orch.home, done.json["sweep"])


@pytest.mark.timeout(300)
def test_the_points_run_one_after_another_and_are_ranked(orch: Orch, project: Callable[..., Path]) -> None:
    folder = project(point_py=POINT)
    (folder / ".gitignore").write_text("*.pt\n")
    (folder / "model.pt").write_bytes(mine := bytes(2 << 20))  # of an earlier run, which all points write again
    (folder / "job.yaml").write_text(f"script: point.py\nargs: [{folder}/held]\nenv: {{LR: '1'}}\n")
    runs = submit(orch, folder / "job.yaml", "--sweep", "job.env.WIDTH=1..2", "--sweep", "job.env.LR=1e-1,1e-2")
    sweep = runs[0].run_id.rpartition(".")[0]
    assert [run.run_id for run in runs] == [f"{sweep}.{index}" for index in range(4)]
    done = orch("wait", sweep[:-1])
    assert (done.code, done.err) == (0, f"{sweep} succeeded: 4 runs: 4 succeeded\n")
    assert not any(is_queued(run) for run in runs)
    assert f"=== {sweep}.3 job.env.WIDTH=2 job.env.LR=1e-2 ===\nwidth 2 lr 1e-2\n" in orch("logs", "last").out
    best = orch("best", "--metric", "accuracy", "--json").json
    assert [(row["rank"], row["run_id"][-1], round(row["value"], 3)) for row in best] == [
        (1, "2", 0.2), (2, "0", 0.1), (3, "3", 0.02), (4, "1", 0.01),
    ]  # fmt: skip
    assert orch("best", "-m", "loss", "-n", "1", sweep).out.splitlines()[1].split()[:2] == ["1", f"{sweep}.2"]
    assert "they have: accuracy, loss" in orch("best", "-m", "speed").err
    pulled = orch("pull", sweep, "--best", "--metric", "accuracy", "--to", str(folder / "best"))
    assert pulled.err.startswith(f"{sweep}.2 is the best of {sweep}"), pulled.err
    assert (folder / "best/outputs/model.pt").read_text() == "width 2 lr 0.1"
    assert [(run.path / "code/model.pt").read_text()[-8:] for run in runs[:2]] == ["1 lr 0.1", " lr 0.01"]
    assert (folder / "model.pt").read_bytes() == mine
    (line,) = orch("status").out.splitlines()[1:]
    assert line.split()[:3] == [sweep, "succeeded", "local"]
    assert line.endswith("4 runs: 4 succeeded")
    assert orch("status", sweep, "--json").json["points"][1]["values"] == {"job.env.WIDTH": "1", "job.env.LR": "1e-2"}
    assert orch("status", f"{sweep}.1", "--json").json["state"] == "succeeded"
    assert f"{sweep} is a sweep of 4 runs" in orch("why", sweep).err
    assert orch("rm", sweep).code == 0
    assert [*(orch.home / "sweeps").iterdir(), *(orch.home / "runs").iterdir()] == []


@pytest.mark.timeout(300)
def test_a_killed_supervisor_forgets_no_point_and_a_cancel_ends_all(orch: Orch, project: Callable[..., Path]) -> None:
    folder = project(hold_py=HOLD)
    (folder / "job.yaml").write_text("script: hold.py\nlimits: {grace: 1s}\n")
    runs = submit(orch, folder / "job.yaml", "--sweep", "job.env.N=0..3", "--parallel", "2")
    for run in runs[:2]:
        _until_running(run)
    killed = supervisor_of(orch)
    send_signal(killed, signal.SIGKILL)
    assert wait_gone([killed], PATIENCE) == []
    states = [state["state"] for state in orch("status", "last", "--json").json["points"]]  # which starts another one
    assert states == ["running", "running", "pending", "pending"]
    assert orch("cancel", runs[0].run_id, "--now").code == 0
    _until_running(runs[2])
    assert is_queued(runs[3])
    done = orch("cancel", "last", "--now")
    assert (done.code, done.err) == (0, "cancelled 3 runs, 1 had already finished\n  0 processes left\n")
    assert {state.state for state in wait_all(runs, timeout=PATIENCE)} == {"cancelled"}
    assert not (runs[3].node(0)).exists()
    assert not any(is_queued(run) for run in runs)


def test_a_sweep_waits_for_another_run_and_is_waited_for(orch: Orch, project: Callable[..., Path]) -> None:
    folder = project(fails_sh="exit 3\n")
    (folder / "job.yaml").write_text("command: [bash, fails.sh]\n")
    first = orch.submit(str(folder / "job.yaml"), "-p", "local", "--set", "job.command=[sleep, '600']")
    runs = submit(orch, folder / "job.yaml", "--sweep", "job.env.N=0,1", "--after", first.run_id)
    sweep = runs[0].run_id.rpartition(".")[0]
    true = (str(folder / "job.yaml"), "-p", "local", "--set", "job.command=['true']", "--after")
    vain, anyhow = orch.submit(*true, sweep), orch.submit(*true, f"{sweep}:any")
    assert {state_of(run).detail for run in runs} == {f"waits for {first.run_id} to succeed"}
    assert state_of(vain).detail == f"waits for all of {sweep} to succeed"
    assert orch("cancel", first.run_id, "--now").code == 0
    assert orch("wait", sweep).code == 103
    assert (orch("wait", vain.run_id).code, orch("wait", anyhow.run_id).code) == (103, 0)
    assert "after which it was to start, was cancelled" in orch("why", vain.run_id).out
    assert f"{sweep}.0, after which it was to start, was cancelled" in orch("submit", *true, sweep).err
    assert "after which it was to start, was cancelled" in orch("why", runs[1].run_id).out


def test_what_cannot_be_a_sweep_leaves_nothing(orch: Orch, project: Callable[..., Path]) -> None:
    folder = project(fails_sh="exit 3\n")
    (folder / "job.yaml").write_text("command: [bash, fails.sh]\ncheckpoint: {dir: /tmp/there}\n")
    for options, says in (
        (("--sweep", "job.env.N=0,1"), "several points would write their checkpoints to /tmp/there"),
        (
            ("--sweep", "job.env.N=0,1", "--set", "job.checkpoint.dir=../../ck"),
            "several points would write their checkpoints to ../../ck",
        ),
        (("--sweep", "job.resources.cpus=1,x"), "--sweep, job.resources.cpus=x: "),
        (("--sweep", "lr=1,2"), "which this job doesn't have"),
        (("--sweep", "job.env.N=0,1", "--follow"), "--follow follows one run, not a sweep"),
        (("--parallel", "2"), "--parallel only applies to a sweep"),
    ):
        done = orch("submit", str(folder / "job.yaml"), "-p", "local", *options)
        assert (done.code, says in done.err) == (2, True), done.err
    assert not (orch.home / "runs").exists() or list((orch.home / "runs").iterdir()) == []
    own = ("--sweep", "job.env.N=0,1", "--set", "job.checkpoint.dir=ck", "--dry-run")  # in each run's working folder
    assert orch("submit", str(folder / "job.yaml"), "-p", "local", *own).code == 0
    (folder / ".gitignore").write_text("*.pt\n")
    (folder / "model.pt").write_bytes(b"0" * (2 << 20))
    small = ("--sweep", "job.env.N=0,1", "--set", "job.code.max_size=1M", "--set", "job.checkpoint.dir=ck")
    done = orch("submit", str(folder / "job.yaml"), "-p", "local", *small)
    assert (done.code, "model.pt is too large to be copied" in done.err) == (2, True), done.err
    assert [*orch.home.glob("runs/*"), *orch.home.glob("sweeps/*")] == []
    shown = orch("submit", "regression", "-p", "local", "--sweep", "lr=1,2", "--sweep", "seed=0..1", "--dry-run")
    assert shown.out.splitlines()[:3] == ["POINT  lr  seed", "0      1   0", "1      1   1"]
    assert "lr is short for the field job.training.lr" in shown.err
    whole = orch("submit", "regression", "-p", "local", "--sweep", "lr=1,2", "--dry-run", "--json").json
    assert json.dumps(whole["job"]["training"]["lr"]) == "1.0"


def _until_running(run: RunDir) -> None:
    def look(state: RunState) -> None:
        if state.state == "running":
            raise StopIteration

    with pytest.raises(StopIteration):
        wait(run, look, timeout=PATIENCE)


def test_runs_that_delete_their_code_keep_their_outputs_and_a_failure_says_so(
    orch: Orch, project: Callable[..., Path]
) -> None:
    program = (
        "import os, shutil, sys\n"
        "open(os.environ['ORCH_OUTPUT_DIR'] + '/kept.txt', 'w').write(os.environ['CODE'])\n"
        "shutil.rmtree(os.getcwd())\n"
        "sys.exit(int(os.environ['CODE']))\n"
    )
    folder = project(gone_py=program, gone_yaml="script: gone.py\n")
    well, badly = submit(orch, folder / "gone.yaml", "--sweep", "job.env.CODE=0,3")
    assert [state.state for state in wait_all([well, badly], timeout=PATIENCE)] == ["succeeded", "failed"]
    why = " ".join(orch("why", badly.run_id).out.split())
    assert f"ended with exit code 3; node 0 ({os.uname().nodename}) lost the run's folder: " in why
    assert f"{badly.path}/code was removed during the run" in why
    for run, code in ((well, "0"), (badly, "3")):
        assert orch("pull", run.run_id, "--to", str(folder / run.run_id)).code == 0
        assert (folder / run.run_id / "outputs/kept.txt").read_text() == code
    assert (folder / "gone.py").read_text() == program
