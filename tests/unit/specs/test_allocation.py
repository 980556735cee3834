"""`hosts: allocation`: the machines of a scheduler's job as the hosts of an ssh profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.specs.allocation import allocation_key
from orchestrator.specs.profile import SshProfile
from tests.profiles import valid_profile

SLURM = {"SLURM_JOB_NODELIST": "n[1-5]", "SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "4(x5)"}


def profile(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], **fields: Any) -> SshProfile:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = valid_profile({"kind": "ssh", "name": "p", "hosts": "allocation", **fields})
    assert isinstance(found, SshProfile)
    return found


def test_the_machines_of_the_job_are_the_hosts_and_their_counts_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profile(monkeypatch, SLURM, spares=1)
    assert [(host.host, host.nproc_per_node) for host in found.hosts] == [(f"n{n}", 4) for n in range(1, 5)]
    assert [host.host for host in found.spares] == ["n5"]
    assert found.nodes == 4


def test_the_profiles_own_number_of_ranks_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    found = profile(monkeypatch, SLURM, nproc_per_node=2, spares=["other"])
    assert (found.nodes, found.nproc_per_node, found.hosts[0].nproc_per_node) == (5, 2, None)
    assert [host.host for host in found.spares] == ["other"]


@pytest.mark.parametrize("variable", ["PE_HOSTFILE", "PBS_NODEFILE", "OAR_NODEFILE", "LSB_DJOB_HOSTFILE"])
def test_a_file_of_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str) -> None:
    lines = "a 2 main@a -\nb 2 main@b -\n" if variable == "PE_HOSTFILE" else "a\na\nb\nb\n"
    (tmp_path / "hosts").write_text(lines)
    before = allocation_key()
    found = profile(monkeypatch, {variable: str(tmp_path / "hosts")})
    assert [(host.host, host.nproc_per_node) for host in found.hosts] == [("a", 2), ("b", 2)]
    assert allocation_key() != before  # a profile that was read in another job is read again


@pytest.mark.parametrize(
    ("environ", "fields", "words"),
    [
        ({}, {}, "this shell does not run in a job of Slurm, Grid Engine, OAR, LSF, PBS"),
        (SLURM, {"spares": 5}, "Slurm gave 5 machines, but spares is 5, so no machine is left for the run"),
        ({"PBS_NODEFILE": "/nowhere"}, {}, "PBS_NODEFILE names /nowhere, which can't be read"),
    ],
)
def test_what_is_no_allocation_is_refused(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        profile(monkeypatch, environ, **fields)


def test_a_schedulers_command_needs_a_job_of_that_scheduler() -> None:
    fields = {"kind": "ssh", "name": "p", "hosts": ["n1"], "start_by": ["ssh", "srun"]}
    assert valid_profile({**fields, "job": "slurm:7"}).start_by == ("ssh", "srun")
    for job in (None, "pbs:7", "sge:7"):
        with pytest.raises(ValidationError, match="start_by names srun, which needs a job of its scheduler"):
            valid_profile({**fields, "job": job})
    with pytest.raises(ValidationError, match="ssh"):
        valid_profile({**fields, "start_by": ["rsh"]})
