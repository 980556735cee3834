"""A function called on the ranks of a Slurm job, on the cluster itself and through its login node."""

from __future__ import annotations

import pytest

from tests.cluster.control import Control
from tests.cluster.test_slurm import PROFILE, User
from tests.cluster.test_slurm_login import LAPTOP, Laptop

pytestmark = pytest.mark.cluster("slurm", nodes=4)

SCRIPT = """
import sys
import orchestrator as orch


def where(values):
    import os, socket, torch
    rank = int(os.environ["RANK"])
    return {"host": socket.gethostname(), "value": torch.tensor(values[rank]) if rank == 1 else values[rank]}


results = orch.launch(where, [1.0, 2.0, 3.0], profile=sys.argv[1], nodes=3, nproc_per_node=1)
print(len({result["host"] for result in results}), [float(result["value"]) for result in results])
"""


@pytest.mark.full(
    "tests/cluster/test_ssh_api.py::test_functions_and_jobs_from_a_script",
    "tests/local/test_api.py::test_a_function_is_called_on_every_rank_of_every_node",
)
def test_on_the_cluster(testbed: Control) -> None:
    user = User(testbed)
    script, profile = user.write("script.py", SCRIPT), user.write("p.yaml", PROFILE)
    done = testbed.python("ctl", script, profile, ORCH_HOME="/shared/alice-orch")
    assert (done.code, done.out) == (0, "3 [1.0, 2.0, 3.0]\n"), done.err


@pytest.mark.full(
    "tests/cluster/test_ssh_api.py::test_functions_and_jobs_from_a_script",
)
def test_through_the_login_node(testbed: Control) -> None:
    laptop = Laptop(testbed)
    script, profile = laptop.write("script.py", SCRIPT), laptop.profile()
    done = testbed.python(LAPTOP, script, profile)
    assert (done.code, done.out) == (0, "3 [1.0, 2.0, 3.0]\n"), done.err
