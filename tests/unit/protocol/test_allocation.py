"""The machines of a job, as each scheduler's variables and files name them."""

from __future__ import annotations

import pytest

from orchestrator.protocol.allocation import Allocation, AllocationError, read_allocation

FILES = {
    "/pe": "n1 4 main@n1 UNDEFINED\nn2 2 main@n2 UNDEFINED\nn2 2 more@n2 UNDEFINED\n",
    "/lines": "n1\nn1\nn2\nn2\nn2\n",
    "/empty": "\n",
}


def read(path: str) -> str:
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory")
    return FILES[path]


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_JOB_ID": "7"},
         Allocation("slurm", "7", ("n1", "n2"), (4, 4))),
        ({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "8,2", "SLURM_JOB_ID": "7"},
         Allocation("slurm", "7", ("n1", "n2"), (8, 2))),
        ({"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "odd"},
         Allocation("slurm", "", ("n1", "n2"), (None, None))),
        ({"PE_HOSTFILE": "/pe", "JOB_ID": "8"}, Allocation("sge", "8", ("n1", "n2"), (4, 4))),
        ({"PBS_NODEFILE": "/lines", "PBS_JOBID": "9.server"}, Allocation("pbs", "9.server", ("n1", "n2"), (2, 3))),
        ({"OAR_NODEFILE": "/lines", "PBS_NODEFILE": "/lines", "OAR_JOB_ID": "1"},
         Allocation("oar", "1", ("n1", "n2"), (2, 3))),
        ({"LSB_DJOB_HOSTFILE": "/lines", "LSB_JOBID": "2"}, Allocation("lsf", "2", ("n1", "n2"), (2, 3))),
        ({"PE_HOSTFILE": ""}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_every_scheduler(environ: dict[str, str], found: Allocation | None) -> None:
    assert read_allocation(environ, read) == found


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SLURM_JOB_NODELIST": "n[1-"}, "Slurm's list of nodes can't be read"),
        ({"PE_HOSTFILE": "/gone"}, "PE_HOSTFILE names /gone, which can't be read"),
        ({"PBS_NODEFILE": "/empty"}, "PBS_NODEFILE names /empty, which lists no host"),
    ],
)
def test_a_list_that_cannot_be_read_is_an_error(environ: dict[str, str], words: str) -> None:
    with pytest.raises(AllocationError, match=words):
        read_allocation(environ, read)


def test_only_one_kind_is_looked_for() -> None:
    both = {"SLURM_JOB_NODELIST": "n[1-2]", "PE_HOSTFILE": "/pe"}
    found = read_allocation(both, read, only="sge")
    assert found is not None
    assert found.title == "Grid Engine"
