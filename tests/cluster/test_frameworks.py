"""The examples that use other people's frameworks, over SSH and on Slurm: trained alike, also when one gives way."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from orchestrator.node.system.processes import send_signal
from tests.cluster.control import Control
from tests.cluster.lab import Lab
from tests.cluster.scheduler import ORCH
from tests.cluster.test_slurm import Run, User
from tests.testbed.layout import REPO
from tests.testbed.machine import wait_until

pytestmark = pytest.mark.cluster("slurm")

PYTHON = str(REPO / ".venv-frameworks/bin/python")  # by `make test`; orch is not installed there
# One thread: how many there are decides in which order a sum is taken.
SETTINGS = {
    "hf_trainer": "--set=job.args=[--steps=300]",
    "lightning_trainer": "--set=job.args=[--epochs=2]",
    "torch_ddp": "--set=job.args=[--epochs=4]",
    "accelerate_loop": "--set=job.args=[--epochs=3]",
}


def argv(example: str, settings: str) -> list[str]:
    return [str(REPO / f"jobs/{example}.yaml"), settings, "--set=job.env.OMP_NUM_THREADS='1'", "--json"]


def submit_over_ssh(lab: Lab, example: str, settings: str) -> str:
    return lab.submit(*argv(example, settings), "--profile", lab.profile(hosts=["n1", "n2"], python=PYTHON))


def submit_to_slurm(alice: User, example: str, settings: str) -> Run:
    profile = {"kind": "slurm", "nodes": 1, "nproc_per_node": 2, "python": PYTHON, "time": "1h"}
    done = alice.orch("submit", *argv(example, settings), "-p", alice.write("p.yaml", json.dumps(profile)))
    assert done.code == 0, done.err
    return Run(alice, done.json["run_id"])


def folder(where: Lab | User, run: str) -> Path:
    """The run's folder, as this process sees it."""
    if isinstance(where, Lab):
        return where.home / ".local/state/orch/runs" / run
    return where.testbed.file("ctl", f"{ORCH}/runs/{run}")


def weights(run: Path) -> dict[str, torch.Tensor]:
    """The final weights that node 0 has left in a run's folder."""
    safe = run / "outputs/final/model.safetensors"
    if safe.exists():
        return load_file(safe)
    (found,) = [*run.glob("outputs/**/final.pt"), *run.glob("code/**/final.pt")]
    return dict(torch.load(found, weights_only=True))


def assert_equal(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], what: str) -> None:
    assert got.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(got[name], wanted[name])] == [], what


def step_of(run: Path, attempt: int) -> int:
    """How far rank 0 says it is in an attempt."""
    beat, log = (run / f"nodes/0/attempt_{attempt}" / name for name in ("beat_0", "rank_0.log"))
    text = next((each.read_text() for each in (beat, log) if each.exists()), "")
    found = re.findall(r'^(?:\{"step": |step )(\d+)', text, re.MULTILINE)
    return int(found[-1]) if found else 0


def give_way(alice: User, run: Run, attempt: int) -> None:
    """Let bob take the run's node for a moment when this attempt has got on."""
    path = folder(alice, run.run_id)
    before = step_of(path, attempt - 1)
    wait_until(lambda: step_of(path, attempt) > before + 10, f"attempt {attempt} of {run.run_id}")
    host = json.loads(run.text("nodes/0/agent.json"))["host"]
    for process in alice.testbed.processes(host, "alice", run.run_id):
        send_signal(process, signal.SIGSTOP)  # else it might be done before; Slurm sends CONT, and then TERM
    alice.testbed.output("ctl", "srun", "-p", "urgent", "-w", host, "--exclusive", "true", user="bob")


def stopped_at(run: Path, attempt: int) -> int:
    """The step at which all ranks have left an attempt together."""
    (found,) = re.findall(
        r"stopped by a signal at step (\d+)", (run / f"nodes/0/attempt_{attempt}/rank_0.log").read_text()
    )
    return int(found)


@pytest.mark.full(
    "tests/local/test_frameworks.py::test_without_orch_the_callbacks_do_nothing",
    "tests/cluster/test_slurm.py::test_a_requeued_job_goes_on_from_its_checkpoint",
)
def test_each_example_trains_alike_over_ssh_and_on_slurm_where_one_gives_way(testbed: Control) -> None:
    lab, alice = Lab(testbed), User(testbed)
    there = {example: submit_over_ssh(lab, example, settings) for example, settings in SETTINGS.items()}
    for run in there.values():
        assert lab.wait(run).code == 0, lab.orch("why", run).out
    runs = {"hf_trainer": submit_to_slurm(alice, "hf_trainer", SETTINGS["hf_trainer"])}
    first = runs["hf_trainer"]
    give_way(alice, first, 0)
    runs |= {name: submit_to_slurm(alice, name, SETTINGS[name]) for name in SETTINGS if name not in runs}
    for example, run in runs.items():
        state = run.end()
        assert state["state"] == "succeeded", (example, state["verdict"])
        assert_equal(weights(folder(alice, run.run_id)), weights(folder(lab, there[example])), example)
    assert {event["code"] for event in first.events("rank_exit") if event["attempt"] == 0} == {95}
    told = [json.loads(line) for line in first.text("metrics.jsonl").splitlines()]
    left = stopped_at(folder(alice, first.run_id), 0)
    assert min(line["step"] for line in told if line["attempt"] == 1) > left > 10
    assert {"eval_loss", "train_loss", "step"} <= json.loads(first.text("result.json")).keys()


@pytest.mark.soak(alone="some minutes")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("example", "settings"),
    [
        ("hf_trainer", "--set=job.args=[--steps=500]"),
        ("lightning_trainer", "--set=job.args=[--epochs=20]"),
        ("torch_ddp", "--set=job.args=[--epochs=400]"),
    ],
)
def test_a_run_that_gives_way_twice_ends_with_the_weights_of_an_undisturbed_one(
    testbed: Control, example: str, settings: str
) -> None:
    alice = User(testbed)
    undisturbed = submit_to_slurm(alice, example, settings)
    assert undisturbed.end()["state"] == "succeeded"
    run = submit_to_slurm(alice, example, settings)
    for attempt in range(2):
        give_way(alice, run, attempt)
    state = run.end()
    assert (state["state"], state["restarts"]) == ("succeeded", 2), state["verdict"]
    assert_equal(weights(folder(alice, run.run_id)), weights(folder(alice, undisturbed.run_id)), example)
    codes = {event["code"] for event in run.events("rank_exit") if event["attempt"] < 2}
    assert codes == ({None} if example == "torch_ddp" else {95})  # a script that knows nothing of signals ends by them


@pytest.mark.soak(alone="some minutes")
@pytest.mark.parametrize("example", ["hf_trainer", "lightning_trainer"])
def test_ranks_on_machines_that_share_nothing_go_on_from_what_each_has_saved(testbed: Control, example: str) -> None:
    lab = Lab(testbed)
    settings = {"hf_trainer": "--set=job.args=[--steps=300]", "lightning_trainer": "--set=job.args=[--epochs=10]"}[
        example
    ]
    undisturbed = submit_over_ssh(lab, example, settings)
    assert lab.wait(undisturbed).code == 0
    run = submit_over_ssh(lab, example, settings)
    wait_until(lambda: step_of(folder(lab, run), 0) > 60, f"step 60 of {run}")
    os.kill(lab.ranks(run, "n2")[0], signal.SIGKILL)
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert lab.status(run)["restarts"] == 1
    assert_equal(weights(folder(lab, run)), weights(folder(lab, undisturbed)), example)
