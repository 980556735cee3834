"""`orch drill` on machines over SSH and on Slurm, also through its login node; all faults of it with SOAK=1."""

from __future__ import annotations

import os
from functools import partial

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import Lab, settled
from tests.cluster.scheduler import ORCH
from tests.cluster.test_slurm import PROFILE, User
from tests.cluster.test_slurm_login import Laptop
from tests.patience import PATIENCE
from tests.result import Result

pytestmark = [pytest.mark.cluster("slurm", nodes=4), pytest.mark.timeout(1200)]

FULL = os.environ.get("SOAK") == "1"
SHORT = () if FULL else ("--set", 'job.args=["240", "0.05"]')
LINK = ("--set", "job.limits.link=8")  # the least
LONG_LINK = ("--set", "job.limits.link=20")  # what stands still for 3 s may do so for longer on a busy machine


def faults(sample: str) -> tuple[str, ...]:
    """The options of a drill: all that makes sense, or the sample."""
    return () if FULL else tuple(sample.split())


def as_promised(done: Result, count: int) -> None:
    """Every fault of a drill was followed by what is promised; in full, its figures are printed."""
    assert done.code == 0, done.out + done.err
    reports = done.json
    assert len(reports) == (6 if FULL else count)
    for report in reports:
        seen = report["account"]
        assert (report["differences"], seen["left"]) == ([], [])
        noticed = "-" if seen["noticed"] is None else f"{seen['noticed']:.1f} s"
        print(f"{report['order']}: noticed after {noticed}, ended after {seen['took']:.1f} s: {seen['said']}")


@pytest.mark.full(
    "tests/local/test_drill.py::test_what_was_promised_and_did_not_come_is_named_and_the_run_is_kept",
    "tests/cluster/test_ssh_faults.py::test_kill_9_costs_a_restart_and_no_more",
)
def test_over_ssh(testbed: Control) -> None:
    lab = Lab(testbed)
    profile = lab.profile(hosts=["n1", "n2"])
    options = (*SHORT, *(LINK if FULL else LONG_LINK), *faults("--kill node --freeze n2:3s"), "--json")
    as_promised(lab.orch("drill", profile, *options, timeout=4 * PATIENCE), 2)
    state = lab.home / ".local/state/orch"
    assert [path.name for name in ("runs", "live") for path in (state / name).iterdir()] == []
    for host in ("n1", "n2"):
        assert list(testbed.file(host, "/home/alice/.orch/runs").iterdir()) == []
        settled(lambda host=host: not testbed.processes(host, "alice"), f"the end of its connections to {host}")


@pytest.mark.parametrize("through", ["ctl", "laptop"] if FULL else ["ctl"])
@pytest.mark.full(
    "tests/local/test_drill.py::test_what_was_promised_and_did_not_come_is_named_and_the_run_is_kept",
    "tests/cluster/test_slurm.py::test_an_agent_that_is_killed_costs_one_restart",
)
def test_on_slurm(testbed: Control, through: str) -> None:
    """On the login node; in full, through it as well."""
    options = (*SHORT, *LINK, *faults("--kill rank"), "--json")
    if through == "laptop":
        laptop = Laptop(testbed)
        as_promised(laptop.orch("drill", laptop.profile(), *options, timeout=4 * PATIENCE), 1)
        return
    where = User(testbed).write("drill.yaml", PROFILE.replace("nodes: 3", "nodes: 2"))
    as_promised(testbed.orch("drill", where, *options, ORCH_HOME=ORCH, timeout=4 * PATIENCE), 1)
    assert list(testbed.file("ctl", f"{ORCH}/runs").iterdir()) == []


if FULL:  # each of these goes on for as long as it would anyway, and the sample has test_ssh_faults.py's flap

    @pytest.mark.parametrize("kind", ["ssh", "slurm"])
    def test_freezes_that_cost_nothing(testbed: Control, kind: str) -> None:
        """A short one of one node of two, and a long one of the only node; then kills of all that the only node has."""
        if kind == "ssh":
            lab = Lab(testbed)
            call, state = partial(lab.orch, timeout=4 * PATIENCE), "/home/alice/.local/state/orch"
            two, one = lab.profile(hosts=["n1", "n2"]), lab.profile("one", hosts=["n1"])
        else:
            alice = User(testbed)
            call, state = partial(testbed.orch, ORCH_HOME=ORCH, timeout=4 * PATIENCE), ORCH
            two, one = (alice.write(f"{n}.yaml", PROFILE.replace("nodes: 3", f"nodes: {n}")) for n in (2, 1))
        for options in ((two, "--freeze", "1:3s"), (one, "--freeze", "0:14s")):
            done = call("drill", *options, *LONG_LINK, "--json")
            assert (done.code, done.json[0]["account"]["restarts"]) == (0, 0), done.out + done.err
        done = call("drill", one, *LINK, "--kill", "agent", "--kill", "node", "--json")
        assert done.code == 0, done.out + done.err
        for report in done.json:
            print(kind, report["order"], report["account"])
        assert list(testbed.file("ctl", f"{state}/runs").iterdir()) == []

    def test_a_frozen_node_0_is_named_and_not_who_left_it(testbed: Control) -> None:
        lab = Lab(testbed)
        done = lab.orch(
            "drill", lab.profile(hosts=["n1", "n2"]), *LINK, "--freeze", "0:14s", "--json", timeout=4 * PATIENCE
        )
        assert done.code == 0, done.out + done.err
        assert "lost node 0: no heartbeat" in done.json[0]["account"]["said"]
