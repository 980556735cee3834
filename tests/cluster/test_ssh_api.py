"""Functions and jobs from a script of alice's on her laptop, run by the ranks of three machines that lack her files."""

from __future__ import annotations

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import LAPTOP, Lab
from tests.patience import PATIENCE
from tests.testbed.layout import REPO

SCRIPT = """
import os
import orchestrator as orch
from helper import scaled


def work(values, megabytes):
    import socket, torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    total = torch.tensor(float(values[rank]))
    dist.all_reduce(total)
    print("the sum is", total.item())
    if rank == 5:
        return {"host": socket.gethostname(), "total": total, "large": torch.full((megabytes << 18,), 5.0)}
    return {"host": socket.gethostname(), "total": scaled(total.item())}


def fail(rank):
    if int(os.environ["RANK"]) == rank:
        raise ValueError("no such shard")
    import time
    time.sleep(600)


lines = []
results = orch.launch(work, [1, 2, 3, 4, 5, 6], 9, profile="lab.yaml", log=lines.append)
print([result["host"] for result in results], [line for line in lines if "sum" in line])
print([float(result["total"]) for result in results])
print(results[5]["large"].sum().item(), results[5]["large"].shape[0])
try:
    orch.launch(fail, 3, profile="lab.yaml", sets={"job.launcher": "exec"})
except orch.RunFailedError as error:
    print(error)
run = orch.submit("job/job.yaml", "lab.yaml")
print(list(run.logs(4)), run.result(), run.status().state)
"""
PROGRAM = """
import json, os
print("I am", os.environ["RANK"])
if os.environ["RANK"] == "0":
    json.dump({"ok": True}, open(os.environ["ORCH_RESULT_FILE"], "w"))
"""


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


@pytest.mark.timeout(400)
def test_functions_and_jobs_from_a_script(lab: Lab) -> None:
    lab.profile(nproc_per_node=2)
    lab.job("job", PROGRAM, launcher="exec")
    lab.write("script.py", SCRIPT)
    lab.write("helper.py", "def scaled(number):\n    return 10 * number\n")
    done = lab.control.python(LAPTOP, "script.py", timeout=1.5 * PATIENCE)
    assert done.code == 0, done.err
    hosts, totals, large, *failure, run = done.out.splitlines()
    assert hosts == "['n1', 'n1', 'n2', 'n2', 'n3', 'n3'] ['the sum is 21.0']"
    assert totals == "[210.0, 210.0, 210.0, 210.0, 210.0, 21.0]"
    assert large == f"{5.0 * (9 << 18)} {9 << 18}"
    assert "rank 3 on node 1 (n2) ended with exit code 1: ValueError: no such shard" in failure[0]
    assert any("in fail" in line for line in failure)
    assert run == "['I am 4'] {'ok': True} succeeded"
    for folder in (lab.home / ".local/state/orch/runs").iterdir():
        lab.assert_nothing_left(folder.name)
    assert str(REPO) not in done.err
