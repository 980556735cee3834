"""Nodes that are lost for good, or before anything ran: the run goes on without them, or with others."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
import torch

from tests import wheels
from tests.cluster.control import Control
from tests.cluster.lab import HELD_AT_FIRST, STEPS, Lab, kill, settled, weights_after
from tests.cluster.test_ssh_faults import PAUSE, TOTAL, begun, weights

# In every attempt all ranks stay together at step 12 until a file ~/go is on rank 0's machine.
HELD = STEPS.replace("return False", "return done == 12 and not os.path.exists(os.path.expanduser('~/go'))")

# Trained by orch's own program, as slowly as PAUSE says: 60 samples of y = sum(x).
TASK = """
import os, time
import torch
from torch import nn
from orchestrator.training.data import Data

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.seen = 0
    def forward(self, x):
        time.sleep(float(os.environ["PAUSE"]))
        self.seen += 1
        while self.seen > 8 and os.path.exists(os.path.expanduser("~/hold")):
            time.sleep(0.05)
        return self.inner(x)

def data(options):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(60, 8, generator=generator, dtype=torch.float64).float()
    y = x.sum(1, keepdim=True)
    return Data((x, y), (x[:10], y[:10]), "sums")

def model(options):
    return Slow()

def loss(outputs, targets):
    return ((outputs - targets) ** 2).mean()
"""


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def sums(lab: Lab, pause: float) -> str:
    """A job of 40 steps on batches of 33, which three ranks share equally and two do not."""
    (lab.home / "sums").mkdir(exist_ok=True)
    lab.write("sums/sums.py", TASK)
    own = {"task": "sums.py", "steps": 40, "global_batch": 33, "save_every": 4, "eval_every": 40}
    lab.write("sums/sums.yaml", json.dumps({"training": own, "env": {"PAUSE": str(pause)}}))
    return "sums/sums.yaml"


def trained(lab: Lab, run: str) -> dict[str, torch.Tensor]:
    folder = max((lab.home / ".local/state/orch/runs" / run / "checkpoints").glob("step_*"))
    assert folder.name == "step_00000040"
    state: dict[str, dict[str, torch.Tensor]] = torch.load(folder / "state.pt", weights_only=True)
    return state["model"]


def test_without_a_spare_a_run_goes_on_with_the_nodes_that_are_left(lab: Lab) -> None:
    job = lab.job("steps", HELD, args=[str(TOTAL), PAUSE], limits={"join": 60})
    run = lab.submit(job, "--profile", lab.profile(min_nodes=2))
    lab.until(run, "collected")
    lab.control.crash("n2")
    lab.until(run, "go", 2)
    state = lab.status(run)
    assert (state["world_size"], state["detail"]) == (2, "on 2 of 3 nodes, without n2")
    assert [node["host"] for node in state["nodes"]] == ["n1", "n3"]
    lab.let_go("n1")
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    ended = lab.status(run)
    assert (ended["state"], ended["verdict"]["reason"]) == ("succeeded", "on 2 of 3 nodes, without n2")
    assert begun(lab, run)[0] == 0 < begun(lab, run)[-1]
    assert weights(lab, run) == weights_after(TOTAL)
    # what n3 wrote as node 2 has been brought before it became node 1
    assert list((lab.home / ".local/state/orch/runs" / run).glob("nodes/2/attempt_0/rank_2.log"))
    lab.assert_nothing_left(run, ("n1", "n3"), away="n2")


@pytest.mark.full(
    "tests/cluster/test_ssh_elastic.py::test_without_a_spare_a_run_goes_on_with_the_nodes_that_are_left",
    "tests/local/test_training_strategies.py::test_another_number_of_ranks_resumes_under_another_strategy",
)
def test_without_a_spare_a_run_goes_on_with_the_nodes_that_are_left_and_the_same_batch(lab: Lab) -> None:
    lab.write("here.yaml", '{"kind": "local", "nproc_per_node": 3}')
    unbroken = lab.submit(sums(lab, 0), "--profile", "here.yaml")
    assert lab.wait(unbroken).code == 0
    holds = {host: lab.control.file(host, "/home/alice/hold") for host in ("n1", "n2", "n3")}
    for hold in holds.values():
        hold.touch()
    run = lab.submit(sums(lab, 0.1), "--profile", lab.profile(min_nodes=2))
    lab.until(run, "collected")
    lab.control.crash("n2")
    lab.until(run, "go", 2)
    state = lab.status(run)
    assert (state["world_size"], state["detail"]) == (2, "on 2 of 3 nodes, without n2")
    assert [node["host"] for node in state["nodes"]] == ["n1", "n3"]
    for host in ("n1", "n3"):
        holds[host].unlink()
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    ended = lab.status(run)
    assert (ended["state"], ended["verdict"]["reason"]) == ("succeeded", "on 2 of 3 nodes, without n2")
    assert "resumed from" in lab.log(run)
    expected, found = trained(lab, unbroken), trained(lab, run)
    assert max(float((expected[name] - found[name]).abs().max()) for name in expected) < 1e-5
    lab.assert_nothing_left(run, ("n1", "n3"), away="n2")


@pytest.mark.full(
    "tests/cluster/test_ssh_faults.py::test_a_machine_that_dies_is_replaced_by_a_spare",
)
def test_a_node_that_is_lost_before_anything_ran_is_replaced_as_well(lab: Lab) -> None:
    for host in ("n1", "n3"):
        lab.control.file(host, "/home/alice/ready").touch()
    waits = "until [ -e ~/ready ]; do sleep 0.1; done"  # n2 never gets its launcher ready
    environment = {"lock": "requirements.txt", "system_packages": sys.executable}
    job = lab.job("steps", f"import alpha\n{STEPS}", args=["10", "0"], environment=environment)
    lock = wheels.requirements(wheels.wheel(lab.home / "wheels", "alpha")).replace(str(lab.home), "/home/alice")
    lab.write("steps/requirements.txt", lock)
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"], spares=["n3"], setup=[waits]))
    lab.until(run, "joined", 2)
    lab.control.crash("n2")
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert [(event["host"], event["by"]) for event in lab.events(run, "replaced")] == [("n2", "n3")]
    assert (lab.status(run)["restarts"], len(lab.events(run, "go"))) == (1, 1)
    made = [(event["host"], event["made"]) for event in lab.events(run, "environment")]
    assert made == [("n1", True), ("n2", True), ("n1", False), ("n3", True)]


def test_node_0_may_be_lost_with_its_disk_while_the_laptop_is_closed(lab: Lab) -> None:
    job = lab.job("steps", HELD_AT_FIRST, args=[str(TOTAL), PAUSE], limits={"join": 60})
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"], spares=["n3"]))
    kill(lab.supervisor())
    second = lab.control.file("n2", f"/home/alice/.orch/runs/{run}/checkpoints")
    settled((second / "step_00000010/COMMIT").exists, "the second copy of step 10, on n2")
    lab.control.crash("n1")
    shutil.rmtree(lab.control.file("n1", f"/home/alice/.orch/runs/{run}"))
    assert lab.events(run, "collected") == []
    newest = max(int(path.name[5:]) for path in second.glob("step_*"))
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert lab.log(run).count("weights ") == 1
    assert int(lab.log(run).split("begins at ")[-1].split()[0]) >= newest >= 10
    assert lab.status(run)["restarts"] == 1
    assert [node["host"] for node in lab.status(run)["nodes"]] == ["n2", "n3"]  # who has it leads
    lab.assert_nothing_left(run, ("n2", "n3"), away="n1")


BREAKS = """
import os, socket
if socket.gethostname() == "n2":
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
print("fine on", socket.gethostname(), flush=True)
"""


def test_a_machine_whose_gpu_fails_is_not_used_again_where_there_is_a_spare(lab: Lab) -> None:
    run = lab.submit(lab.job("breaks", BREAKS), "--profile", lab.profile(hosts=["n1", "n2"], spares=["n3"]))
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert [(event["host"], event["by"]) for event in lab.events(run, "replaced")] == [("n2", "n3")]
    assert [event["cause"] for event in lab.events(run, "attempt_failed")] == ["infra"]
    assert lab.status(run)["restarts"] == 1
    lab.assert_nothing_left(run, ("n1", "n3"), away="n2")  # it left the run, and keeps its folder until orch gc
