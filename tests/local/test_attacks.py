"""Another user of this machine at a run's ports: he keeps nobody out, is told nothing, and is named."""

from __future__ import annotations

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.runs.store import RunDir
from tests.local.conftest import Orch
from tests.testbed.machine import wait_until

HOLD = """
import os, time
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
print("meets at", os.environ["MASTER_ADDR"])
"""


def listening(pid: int) -> set[tuple[str, int]]:
    """The addresses and ports at which a process of this machine listens, as /proc tells everybody."""
    inodes = set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{descriptor}").removeprefix("socket:[").rstrip("]"))
    found = set()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                addr, _, port = words[1].partition(":")
                packed = b"".join(bytes.fromhex(addr[i : i + 8])[::-1] for i in range(0, len(addr), 8))
                found.add((socket.inet_ntop(family, packed), int(port, 16)))
    return found


def agents(orch: Orch, run: RunDir, nodes: int) -> dict[int, int]:
    started = {event["node"]: event["pid"] for event in orch.events(run, "agent_started")}
    assert set(started) == set(range(nodes))
    return started


@pytest.fixture
def strangers() -> Iterator[list[socket.socket]]:
    kept: list[socket.socket] = []
    yield kept
    for sock in kept:
        sock.close()


def test_seventy_idle_strangers_and_garbage_at_every_port_change_nothing(
    orch: Orch, project, strangers: list[socket.socket], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    folder = project(hold_py=HOLD, hold_yaml=f"script: hold.py\nlauncher: exec\nenv: {{GO: {go}}}\n")
    run = orch.submit(str(folder / "hold.yaml"), "--profile", "local-2x2")
    wait_until(lambda: len(orch.events(run, "started")) == 2, "both nodes")
    ports = {node: listening(pid) for node, pid in agents(orch, run, 2).items()}
    assert {addr for found in ports.values() for addr, _ in found} == {"127.0.0.1"}
    (gang,) = {event["port"] for event in orch.events(run, "listening")}
    assert Counter({node: len(found) for node, found in ports.items()}) == {0: 2, 1: 1}
    for _ in range(70):
        strangers.append(socket.create_connection(("127.0.0.1", gang)))
    for _, port in set().union(*ports.values()):
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(b'{"to": 1, "kind": "keep", "checkpoint": "a", "listing": 0}\n{"to": "leader", "hello": {}}\n')
            said = b""
            with contextlib.suppress(ConnectionError):
                said = sock.recv(1 << 16)
            assert b"{" not in said
    wait_until(lambda: len(orch.events(run, "strangers")) >= 3, "the word of the strangers")
    go.touch()
    assert orch("wait", run.run_id).code == 0
    told = {(event["node"], event["at"]) for event in orch.events(run, "strangers")}
    assert told == {(0, "gang"), (0, "neighbour"), (1, "neighbour")}
    assert "meets at 127.0.0.1" in orch("logs", run.run_id, "--all").out


def test_one_node_alone_opens_no_port_to_the_network(orch: Orch, project, tmp_path: Path) -> None:
    """The launcher serves torch's store."""
    orch = orch.with_torch
    go = tmp_path / "go"
    folder = project(hold_py=HOLD, hold_yaml=f"script: hold.py\nlauncher: exec\nenv: {{GO: {go}}}\n")
    run = orch.submit(str(folder / "hold.yaml"), "--profile", "local")
    wait_until(lambda: len(orch.events(run, "launcher_started")) == 1, "the launcher")
    ((_, agent),) = agents(orch, run, 1).items()
    assert listening(agent) == set()
    (started,) = orch.events(run, "launcher_started")
    launcher = int(Path(f"/proc/{next(iter(started['pids'].values()))}/stat").read_text().rpartition(")")[2].split()[1])
    wait_until(lambda: listening(launcher) != set(), "the store")
    assert {addr for addr, _ in listening(launcher)} == {"127.0.0.1"}
    go.touch()
    assert orch("wait", run.run_id).code == 0
