"""The mixed hour of `make soak`: drills on this machine, over SSH, on Slurm and in containers, faults drawn at random.

SOAK_MINUTES asks for another time; the sample that every test run has is tests/soak/test_mixed.py.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import Lab
from tests.cluster.scheduler import ORCH
from tests.cluster.test_containers import container
from tests.cluster.test_slurm import PROFILE, User
from tests.soak.conftest import FULL, Soak, soak  # noqa: F401 (a fixture, used by name)
from tests.soak.mixed import FAULTS, LINK, Ground

MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))
SHORT = ("--set", 'job.args=["240", "0.05"]', "--set", f"job.limits.link={LINK}")
STANDING = ("submit", "hello", "-p", "local", "--set", 'job.command=["sleep", "36000"]', "--nproc-per-node", "1")


def ground(testbed: Control, name: str, host: str, state: str, *options: str) -> Ground:
    """A kind of cluster, drilled from this host; runs are in this state folder there."""
    orch = partial(testbed.orch, host=host)
    started = orch(*STANDING, "--json", ORCH_HOME=state)
    assert started.code == 0, started.err

    def call(*args: str, **extra: Any) -> Any:
        return orch(*args, **{"ORCH_HOME": state, **extra})

    return Ground(name, call, (*options, *SHORT), partial(supervisor, testbed, host, state), f"{state}-alone")


def supervisor(testbed: Control, host: str, state: str) -> int:
    """The number of the process that looks after a state folder."""
    for each in testbed.processes(host, "alice"):
        argv, environment = (Path(f"/proc/{each.pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
        if b"orchestrator.supervisor" in argv and f"ORCH_HOME={state}\0".encode() in environment:
            return each.pid
    raise AssertionError(f"{state} on {host} has no supervisor")


def all_grounds(testbed: Control, image: str) -> list[Ground]:
    lab = Lab(testbed)
    over_ssh = lab.profile(hosts=["n1", "n2"])
    boxed = lab.profile("boxed", hosts=["n1", "n2"], runtime="docker")
    on_slurm = User(testbed).write("drill.yaml", PROFILE.replace("nodes: 3", "nodes: 2"))
    return [
        ground(testbed, "this machine", "n3", "/home/alice/state", "local-2x2", "--set", "profile.nproc_per_node=1"),
        ground(testbed, "ssh", "ctl", "/home/alice/state", over_ssh),
        ground(testbed, "containers", "ctl", "/home/alice/boxes", boxed, "--set",
               f"job.container={json.dumps(container(image))}"),
        ground(testbed, "slurm", "ctl", ORCH, on_slurm),
    ]  # fmt: skip


def mixed_hour(testbed: Control, image: str, soak: Soak) -> None:  # noqa: F811
    grounds, end, count = all_grounds(testbed, image), time.monotonic() + 60 * MINUTES, 0
    while time.monotonic() < end:
        where, fault = grounds[count % len(grounds)], soak.chance.choice(FAULTS)
        before = len(soak.failures)
        where.drill(soak, fault)
        count += 1
        print(f"{count}: {where.name}, {fault}; {len(soak.failures)} failures", *soak.failures[before:], flush=True)
    for each in grounds:
        print(each.check_supervisor(soak))
        runs = each.orch("status", "--json").json
        for run in runs:
            if run["name"] == "hello":
                assert each.orch("cancel", run["run_id"], "--now").code == 0
    left = {host: testbed.processes(host, "alice", "drill-") for host in testbed.cluster.hosts}
    soak.check(not any(left.values()), f"left: {left}")
    soak.end(f"drills in {MINUTES:g} min: this machine, SSH, containers, Slurm; a fault drawn at random", count)


if FULL:  # there is nothing in it that the sample and test_drill.py don't have

    @pytest.mark.soak
    @pytest.mark.cluster("slurm", "docker", nodes=4)
    @pytest.mark.timeout(60 * MINUTES + 1200)
    def test_a_mixed_hour(testbed: Control, image: str, soak: Soak) -> None:
        mixed_hour(testbed, image, soak)
