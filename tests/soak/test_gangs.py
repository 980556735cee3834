"""Gangs that start while most of their ports are held by others, and while strangers talk to those that are not.

The holders of ports do what holders do: say nothing, say garbage, refuse, or keep what a member says first, which is
then replayed to the real leader; and another run's members dial it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import secrets
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.node.agent.tls import Tls
from orchestrator.node.system.processes import marked
from orchestrator.protocol.gang import gang_ports
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.task import NodeTask, Program
from orchestrator.transport.credentials import new_credentials
from orchestrator.transport.node_archive import node_archive
from tests.local.test_agents import events, task_in
from tests.patience import PATIENCE

from .conftest import Soak

pytestmark = pytest.mark.soak

HELD = 12
HELLO = Program("command", "sh", ("-c", "echo hello from rank $RANK of $WORLD_SIZE; exit 0"))
OVERSIZED = 1 << 20
STRANGER = Tls.of(new_credentials()).client  # of another run, and not choosy
STRANGER.verify_mode = ssl.CERT_NONE


class Strangers:
    """Holders of ports, and dialers of the others; all of them threads of this process, on loopback only."""

    def __init__(self, seed: str) -> None:
        self.chance = random.Random(seed)
        self.over = threading.Event()
        self.captured: list[bytes] = []
        self.counts = {"accepted": 0, "dialled": 0, "replayed": 0, "let in": 0}
        self.threads: list[threading.Thread] = []
        self.sockets: list[socket.socket] = []

    def hold(self, port: int) -> bool:
        """Take a port, and treat whoever comes by badly; False where another has it."""
        taken = socket.socket()
        try:
            taken.bind(("127.0.0.1", port))
        except OSError:
            taken.close()
            return False
        self.sockets.append(taken)
        manner = self.chance.choice(("refuse", "silent", "garbage", "slow", "leader", "leader"))
        if manner != "refuse":
            taken.listen(64)
            taken.settimeout(0.2)
            self._begin(self._serve, taken, manner)
        return True

    def _begin(self, act: object, *args: object) -> None:
        thread = threading.Thread(target=act, args=args, daemon=True)  # type: ignore[arg-type]
        self.threads.append(thread)
        thread.start()

    def _serve(self, listening: socket.socket, manner: str) -> None:
        kept = []
        while not self.over.is_set():
            try:
                peer, _ = listening.accept()
            except TimeoutError:
                continue
            except OSError:
                break
            self.counts["accepted"] += 1
            peer.settimeout(1.0)
            with contextlib.suppress(OSError):
                if manner == "garbage":
                    peer.sendall(secrets.token_bytes(300) + b"\n")
                elif manner == "slow":
                    peer.sendall(b'{"orch":')
                elif manner == "leader":
                    self.captured.append(peer.recv(1 << 16))
                    peer.sendall(self.captured[-1])
            kept.append(peer)
        for peer in kept:
            peer.close()

    def dial_all(self, ports: list[int]) -> None:
        """Keep dialling these ports until the end."""
        self._begin(self._dial, random.Random(self.chance.random()), ports)

    def _dial(self, chance: random.Random, ports: list[int]) -> None:
        kept: list[socket.socket] = []
        while not self.over.is_set():
            port = chance.choice(ports)
            try:
                peer = socket.create_connection(("127.0.0.1", port), 0.5)
            except OSError:
                time.sleep(0.002)
                continue
            self.counts["dialled"] += 1
            peer.settimeout(0.5)
            kept.append(peer)
            with contextlib.suppress(OSError):
                self._pester(chance, peer)
            for old in kept[:-20]:
                old.close()
            kept = kept[-20:]
        for peer in kept:
            peer.close()

    def _pester(self, chance: random.Random, peer: socket.socket) -> None:
        how = chance.choice(("garbage", "oversized", "slow", "replay", "replay", "another run", "reset", "odd json"))
        if how == "garbage":
            peer.sendall(chance.randbytes(200) + b"\n")
        elif how == "oversized":
            peer.sendall(b"x" * OVERSIZED)
        elif how == "slow":
            peer.sendall(b'{"hello": ')
        elif how == "replay" and self.captured:
            self.counts["replayed"] += 1
            peer.sendall(chance.choice(self.captured))
            peer.makefile("rb").read(4096)
        elif how == "another run":
            with STRANGER.wrap_socket(peer) as member:
                member.sendall(b'{"to": "leader", "hello": {"node_rank": 1, "host": "x", "nproc": 1}}\n')
                self.counts["let in"] += b"joined" in member.recv(4096)
        elif how == "reset":
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
        else:
            odd = chance.choice(([], {"hello": []}, {"hello": {"node_rank": []}}, {"proof": None}, 1, "[" * 5000))
            peer.sendall(json.dumps(odd).encode() + b"\n")

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(PATIENCE)
        for each in self.sockets:
            each.close()


@contextlib.contextmanager
def strangers(seed: str) -> Iterator[Strangers]:
    them = Strangers(seed)
    try:
        yield them
    finally:
        them.end()


def start(task: NodeTask) -> subprocess.Popen[bytes]:
    folder = Path(node_folder(task.run_dir, task.node_rank))
    folder.mkdir(parents=True)
    (folder / "task.json").write_text(json.dumps(task.to_json()))
    with open(folder / "agent.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, f"{task.run_dir}/node.pyz", "agent", str(folder / "task.json")],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


def run_gang(folder: Path, run_id: str, credentials: str) -> tuple[list[NodeTask], list[int]]:
    """Start the gang's two agents, and wait for them."""
    folder.mkdir()
    (folder / "code").mkdir()
    tasks = [
        task_in(folder, run_id=run_id, node_rank=node, program=HELLO, join_timeout=60.0,
                credentials=credentials, code_dir=str(folder / "code"), launcher="exec")
        for node in range(2)
    ]  # fmt: skip
    (folder / "node.pyz").write_bytes(node_archive())
    agents: list[subprocess.Popen[bytes]] = []
    try:
        agents += [start(task) for task in tasks]
        return tasks, [agent.wait(timeout=PATIENCE) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()


def test_gangs_start_while_their_ports_are_held(tmp_path: Path, soak: Soak) -> None:
    count, at_once = soak.of(50, 6), soak.of(20, 4)
    ids = [f"gang-{soak.chance.randrange(10**9)}" for _ in range(count)]
    with strangers(f"{soak.chance.random()}") as them:
        credentials = {run_id: new_credentials() for run_id in ids}
        ports = {run_id: gang_ports(credentials[run_id]) for run_id in ids}
        held = {run_id: sum(them.hold(port) for port in ports[run_id][:HELD]) for run_id in ids}
        free = list(itertools.chain.from_iterable(ports[run_id][HELD:] for run_id in ids))
        for _ in range(3):
            them.dial_all(free)
        with ThreadPoolExecutor(at_once) as pool:
            began = [pool.submit(run_gang, tmp_path / run_id, run_id, credentials[run_id]) for run_id in ids]
            results = [each.result() for each in began]
    for run_id, (tasks, codes) in zip(ids, results, strict=True):
        said = [
            (tmp_path / run_id / f"nodes/{node}/attempt_0/rank_{node}.log").read_text()
            if (tmp_path / run_id / f"nodes/{node}/attempt_0/rank_{node}.log").exists()
            else ""
            for node in range(2)
        ]
        last = [event for task in tasks for kind in ("gang_ended", "gave_up") for event in events(task, kind)]
        ends = [event.get("reason") for event in last]
        soak.check(codes == [0, 0], f"{run_id} ({held[run_id]} ports held): {codes} {ends}")
        soak.check(said == [f"hello from rank {rank} of 2\n" for rank in range(2)], f"{run_id}: the ranks said {said}")
        soak.check([event["joined"] for event in events(tasks[0], "joined")].count(1) <= 1, f"{run_id}: a stranger")
        log = "".join((tmp_path / run_id / f"nodes/{node}/agent.log").read_text() for node in range(2))
        soak.check("Traceback" not in log and "never retrieved" not in log, f"{run_id}: {log}")
        soak.check(not marked(run_id), f"{run_id}: {marked(run_id)}")
    soak.check(them.counts["let in"] == 0, f"a stranger was let in: {them.counts}")
    soak.check(them.counts["dialled"] > count and them.counts["accepted"], f"nobody came: {them.counts}")
    print(f"strangers: {them.counts}")
    soak.end(f"gangs of 2, {at_once} at once, {HELD} of 16 ports held, strangers dialling", count)
