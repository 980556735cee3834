"""One machine listens, another probes it: the first address that answers, also to many bytes, or each one's problem."""

from __future__ import annotations

import socket
import threading

import pytest

from orchestrator.node.server import reachability
from orchestrator.node.system.sockets import PADDING
from tests.patience import PATIENCE

HERE = "127.0.0.1"


def listening() -> int:
    answer, _ = reachability.listen({"addrs": [HERE], "interface": None, "ports": [0]}, b"")
    return int(answer["port"])


def problems(port: int) -> list[str]:
    answer, _ = reachability.probe({"addrs": [HERE], "port": port}, b"")
    assert answer["addr"] is None
    return list(answer["problems"])


def test_who_listens_is_reached_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "PROBE_SECONDS", 30.0)
    port = listening()
    for _ in range(3):
        answer, _ = reachability.probe({"addrs": ["127.0.0.2", HERE], "port": port}, b"")
        assert (answer["addr"], answer["own"]) == (HERE, HERE)


def test_nobody_else_listens_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "LISTEN_SECONDS", 0.2)
    before = set(threading.enumerate())
    port = listening()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    assert problems(port) == [f"{HERE}: Connection refused"]


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (b"220 mail.example\n", "something else answers there"),
        (b"", "timed out"),
        (reachability.GREETING, f"it can be reached, but {len(PADDING) >> 10} KiB that were sent there did not come "
                                "back: timed out; is the MTU smaller on the way?"),
    ],
)  # fmt: skip
def test_what_answers_otherwise_or_only_to_a_few_bytes_is_named(
    monkeypatch: pytest.MonkeyPatch, said: bytes, problem: str
) -> None:
    receive = reachability._received

    def received(peer: socket.socket, count: int) -> bytes:
        found = receive(peer, count)
        peer.settimeout(0.5)  # what comes after it is waited for in vain
        return found

    monkeypatch.setattr(reachability, "PROBE_SECONDS", 30.0 if said else 0.5)
    monkeypatch.setattr(reachability, "_received", received)
    with socket.create_server((HERE, 0)) as server:
        kept = []

        def answer() -> None:
            peer, _ = server.accept()
            kept.append(peer)
            peer.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        assert problems(server.getsockname()[1]) == [f"{HERE}: {problem}"]
        thread.join()
        kept[0].close()
