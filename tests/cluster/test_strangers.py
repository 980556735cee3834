"""Bob, on a machine beside the nodes of alice's run: what he reaches there, and what comes of it."""

from __future__ import annotations

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import STEPS, Lab, settled
from tests.local.test_attacks import listening

# 70 connections that say nothing; prints how many were closed, and what was said to them.
FLOOD = """
import contextlib, socket, sys
address = sys.argv[1], int(sys.argv[2])
connections = [socket.create_connection(address, 60) for _ in range(70)]
closed, said = 0, b""
for each in connections:
    with contextlib.suppress(ConnectionError):
        while data := each.recv(1 << 16):
            said += data
    closed += 1
print(closed, said.decode("latin-1"))
"""


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def test_bob_is_told_nothing_and_named_while_alice_trains(lab: Lab) -> None:
    job = lab.job("steps", STEPS, args=["4000", "0.1"])
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"], nproc_per_node=1))
    lab.until_said(run, "begins at")
    (gang,) = lab.events(run, "listening")
    (start, *_) = lab.events(run, "started")
    (addr,) = gang["addrs"]
    assert start["master_addr"] == addr
    assert not addr.startswith("127.")
    own = {"n1": addr, "n2": lab.control.output("n2", "hostname", "-i").split()[0]}
    for host, expected in own.items():
        ours = [*lab.agents(host), *(pid for pid in lab.of_run(run, host) if pid not in lab.ranks(run, host))]
        assert {at for pid in ours for at, _ in listening(pid)} == {expected}, host
    (agent,) = lab.agents("n2")
    ((_, neighbour),) = listening(agent)
    for host, port in ((addr, gang["port"]), (own["n2"], neighbour)):
        said = lab.control.output("n3", "python3", "-c", FLOOD, host, str(port), user="bob")
        assert said == "70"
    bob = lab.control.output("n3", "hostname", "-i").split()[0]
    settled(lambda: len(lab.events(run, "strangers")) >= 14, "the last words on bob")
    told = {(event["node"], event["at"]): event["counts"] for event in lab.events(run, "strangers")}
    assert told == {(0, "gang"): {bob: 64}, (1, "neighbour"): {bob: 64}}  # it is told when they double
    assert lab.orch("cancel", run).code == 0
    lab.assert_nothing_left(run, ("n1", "n2"))
