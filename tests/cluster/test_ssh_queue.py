"""Two users of the same hosts: the second one's runs wait in a queue that both see, and start by themselves."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import HOLD, LAPTOP, Lab, kill, settled
from tests.cluster.test_ssh import TWO_HOURS_AHEAD
from tests.patience import PATIENCE

HOSTS = ["n1", "n2"]


@pytest.fixture
def alice(testbed: Control) -> Lab:
    return Lab(testbed)


@pytest.fixture
def bob(testbed: Control) -> Lab:
    return Lab(testbed, "bob")


def shared(lab: Lab, hosts: list[str] | None = None) -> str:
    """A profile with room for one run of two ranks on each host."""
    return lab.profile(hosts=hosts or HOSTS, nproc_per_node=2, slots=3)


def holding(lab: Lab) -> str:
    """A run of theirs that goes on and holds two slots of each host."""
    run = lab.submit(lab.job("hold", HOLD, retry={"infra": 0}), "--profile", shared(lab))
    lab.until_said(run, "holding")
    return run


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def tickets(lab: Lab) -> list[str]:
    """The runs that have a ticket, on any host."""
    files = [path for host in HOSTS for path in lab.control.file(host, "/tmp").glob("orch-queue.*")]
    return sorted(path.name.split(".", 4)[4] for path in files)


def test_a_second_users_run_waits_and_starts_when_the_first_has_ended(alice: Lab, bob: Lab) -> None:
    held = holding(alice)
    profile, job = shared(bob), bob.job("mine", "print('mine')\n")
    refused = bob.orch("submit", job, "--profile", profile, "--no-wait")
    assert refused.code == 1
    who = f"slot-0, slot-1 held by user alice (uid 48001), run {held} since 2"
    assert f"n1: only 1 of 3 slots is free, 2 are needed: {who}" in refused.err
    assert bob.orch("status", "last").code == 102  # a refused submit is no run
    assert tickets(bob) == []
    run = bob.submit(job, "--profile", profile)
    state = bob.status(run)
    assert state["state"] == "pending"
    assert f"number 1 in the queue: alice ({held}) holds 4 places of n1, n2 since 2" in state["detail"]
    assert tickets(bob) == [run, run]
    kill(alice.agents("n1") + alice.agents("n2"))  # the leases are the kernel's: they end with who holds them
    assert bob.wait(run).code == 0
    assert (bob.log(run), tickets(bob)) == ("mine\n", [])
    alice.wait(held)
    assert bob.orch("nodes", "--profile", profile).out.count("slot-0 free, slot-1 free, slot-2 free") == 2


def test_who_waits_is_seen_by_all_and_cancel_leaves_the_queue(testbed: Control, alice: Lab, bob: Lab) -> None:
    held = holding(alice)
    argv = bob.argv("submit", bob.job("mine", "print('mine')\n"), "--profile", shared(bob), "--follow")
    following = testbed.start(LAPTOP, *argv, user="bob")
    settled(lambda: len(tickets(bob)) == 2, "two tickets")
    run = tickets(bob)[0]
    settled(lambda: "number 1 in the queue" in bob.status(run)["detail"], "the run is in the queue")
    assert following.stderr is not None
    while not (line := following.stderr.readline()).startswith("pending"):  # from then on it follows
        assert line
    orch = [each.pid for each in testbed.processes(LAPTOP, "bob") if b"--follow" in cmdline(each.pid)]
    kill(orch, signal.SIGINT)
    assert f"detached; {run} continues" in following.communicate(timeout=PATIENCE)[1]
    shown = alice.orch("queue", "-p", shared(alice))
    assert shown.code == 0
    rows = [line.split()[:4] for line in shown.out.splitlines()[1:]]
    assert rows == [["-", "alice", held, "running"], ["1", "bob", run, "waiting"]]
    told = bob.orch("status", "--all-users", "-p", shared(bob), "--json").json
    assert [(each["user"], each["run"], each["state"], each["hosts"]) for each in told] == [
        ("alice", held, "running", {"n1": 2, "n2": 2}), ("bob", run, "waiting", {"n1": 2, "n2": 2})
    ]  # fmt: skip
    assert bob.orch("cancel", run).code == 0
    assert (bob.status(run)["state"], tickets(bob)) == ("cancelled", [])
    assert alice.orch("cancel", held, "--now").code == 0


@pytest.mark.full(
    "tests/cluster/test_ssh_queue.py::test_a_second_users_run_waits_and_starts_when_the_first_has_ended",
    "tests/cluster/test_ssh_queue.py::test_who_waits_is_seen_by_all_and_cancel_leaves_the_queue",
)
def test_a_laptop_that_is_shut_is_passed_over_and_is_at_its_old_place_again(
    testbed: Control, alice: Lab, bob: Lab
) -> None:
    """The hosts' servers are told that it is two hours later, instead of waiting for a minute."""
    held = holding(alice)
    first = bob.submit(bob.job("first", "print('first')\n"), "--profile", shared(bob))
    second = alice.submit(alice.job("second", "print('second')\n"), "--profile", shared(alice))
    assert f"number 2 in the queue, after bob ({first})" in alice.status(second)["detail"]
    kill(bob.supervisor())  # the laptop is shut
    later(testbed)
    kill(alice.supervisor())  # the next one asks servers to whom it is later
    settled(lambda: "number 1 in the queue:" in alice.status(second)["detail"], "bob's run is passed over")
    for host in HOSTS:
        testbed.sshd(host)
    kill(alice.supervisor())
    settled(lambda: "number 1 in the queue:" in bob.status(first)["detail"], "bob's run is back")  # status starts it
    settled(lambda: f"number 2 in the queue, after bob ({first})" in alice.status(second)["detail"], "at its old place")
    assert alice.orch("cancel", held, "--now").code == 0
    assert [lab.wait(run).code for lab, run in ((bob, first), (alice, second))] == [0, 0]
    assert bob.events(first, "go")[0]["time"] < alice.events(second, "go")[0]["time"]
    assert tickets(bob) == []


def later(testbed: Control) -> None:
    """Have all servers that are started from now on believe that it is two hours later."""
    for host in HOSTS:
        library = testbed.file(host, "/srv/ahead.so")
        compiler = ["gcc", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-o", str(library), "-"]
        subprocess.run(compiler, input=TWO_HOURS_AHEAD, text=True, check=True, timeout=PATIENCE)
        testbed.sshd(host, "SetEnv LD_PRELOAD=/srv/ahead.so")
