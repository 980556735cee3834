"""256 machines over SSH in one run: all are started, followed and cancelled, and what that costs here is counted.

Only with SOAK=1 (pytest -s shows the figures): some minutes, and 10 GB of memory. SOAK_HOSTS asks for another number.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.node.system.processes import identify
from tests.cluster.control import Control
from tests.cluster.lab import Lab
from tests.patience import PATIENCE
from tests.testbed.cluster import down, up
from tests.testbed.layout import Cluster, state_folder
from tests.testbed.machine import wait_until

HOSTS = int(os.environ.get("SOAK_HOSTS", "256"))
STEP_SECONDS = PATIENCE + 1.5 * HOSTS  # for each step: all hosts share this machine's cores
LOOK_SECONDS = 20.0  # at what following costs
pytestmark = [
    pytest.mark.soak(alone="some minutes, and 10 GB of memory"),
    pytest.mark.timeout(8 * STEP_SECONDS),
]


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long a step took."""
    begun = time.monotonic()
    yield
    print(f"{time.monotonic() - begun:7.1f} s  {what}", flush=True)


@pytest.fixture
def many(no_testbed: None) -> Iterator[Lab]:
    """Alice with so many hosts: a testbed for this test alone, for the others need few."""
    this, folder = identify(os.getpid()), state_folder()
    assert this is not None
    cluster = Cluster(folder.with_name(f"{folder.name}-{secrets.token_hex(3)}"), HOSTS, slurm=False,
                      owner=(this.pid, this.started))  # fmt: skip
    with timed(f"{HOSTS} hosts come up"):
        control = Control(up(cluster))
    try:
        yield Lab(control)
        with timed("all are looked through"):
            assert control.tidy() == []
    finally:
        with timed("they go down"):
            down()


def cost_of(pid: int) -> dict[str, float]:
    """What a process has, and has used so far: threads, open files, private memory in MiB, seconds of CPU."""
    proc = Path(f"/proc/{pid}")
    fields = (proc / "stat").read_text().rpartition(")")[2].split()
    rows = [line.split() for line in (proc / "smaps_rollup").read_text().splitlines()[1:]]
    return {
        "threads": int(fields[17]),
        "files": len(os.listdir(proc / "fd")),
        "MiB": sum(int(row[1]) for row in rows if row[0].startswith("Private_")) // 1024,
        "CPU s": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
    }


def test_many_machines_are_started_followed_and_cancelled(many: Lab) -> None:
    hosts = many.control.cluster.workers
    where = many.profile(hosts=[f"n[1-{HOSTS}]"], python="python3")
    (many.home / "hold").mkdir()
    many.write("hold/hold.yaml", json.dumps({"name": "many", "command": ["sleep", "36000"], "limits": {"join": 600}}))
    begun = time.monotonic()
    with timed("orch submit returns"):
        run = many.submit("hold/hold.yaml", "-p", where, timeout=STEP_SECONDS)
    folder = many.home / ".local/state/orch/runs" / run

    def started() -> int:
        """How many nodes' ranks are known here to run."""
        return sum('"started"' in path.read_text() for path in folder.glob("nodes/*/events.jsonl"))

    wait_until(lambda: many.events(run, "go") != [], "the gang's go", seconds=STEP_SECONDS)
    times = sorted(event["time"] for event in many.events(run, "joined"))
    print(f"{time.monotonic() - begun:7.1f} s  from the command to go; {times[-1] - times[0]:.1f} s of joining")
    wait_until(lambda: started() == HOSTS, "all nodes' own words", seconds=STEP_SECONDS)
    print(f"{time.monotonic() - begun:7.1f} s  from the command until every node is followed")
    (supervisor,) = many.supervisor()
    before, looked = cost_of(supervisor), time.monotonic()
    wait_until(lambda: time.monotonic() - looked > LOOK_SECONDS, "some time of a run that goes on")
    cost = cost_of(supervisor)
    used = (cost["CPU s"] - before["CPU s"]) / (time.monotonic() - looked)
    print(f"the supervisor of {HOSTS} nodes: {cost}, {used:.0%} of a core while the run goes on", flush=True)
    assert cost["threads"] <= 3 * HOSTS + 32
    assert cost["files"] <= 2 * HOSTS + 64
    assert len(json.loads(many.orch("status", run, "--json").out)["nodes"]) == HOSTS
    with timed("orch cancel returns"):
        done = many.orch("cancel", run, "--json", timeout=STEP_SECONDS)
    assert done.code == 0, done.err
    assert (done.json["state"], len(done.json["proofs"])) == ("cancelled", HOSTS)
    many.assert_nothing_left(run, hosts)
