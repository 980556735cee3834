"""GPUs and slots that two runs can't both hold, and whose word counts for who holds them."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from orchestrator.node.server import leases
from orchestrator.node.server.request import RefusedError
from orchestrator.node.system import abstract_sockets

NOBODY = 65534
ME = os.getuid()


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A machine without GPUs on which nobody else holds anything; what names begin with."""
    prefix = f"orch-test-{secrets.token_hex(4)}"
    monkeypatch.setattr(leases, "PREFIX", prefix)
    monkeypatch.setattr(leases, "gpus", lambda: 0)
    yield prefix
    for run_id in list(leases.held):
        leases.release({"run_id": run_id}, b"")


@pytest.fixture
def other_user(machine: str) -> Iterator[Callable[..., None]]:
    """Take names of this machine as another user, until the test's end."""
    if ME != 0:
        pytest.skip("only root can be another user")
    started = []

    def take(*names: str, kind: str = "SOCK_STREAM") -> None:
        lines = [f"s{number} = socket.socket(socket.AF_UNIX, socket.{kind}); s{number}.bind('\\0{machine}/{name}')"
                 for number, name in enumerate(names)]  # fmt: skip
        program = "\n".join(["import socket, sys", *lines, "print('taken', flush=True)", "sys.stdin.read()"])
        pipe = subprocess.PIPE
        process = subprocess.Popen(["/usr/bin/env", "python3", "-I", "-c", program], user=NOBODY, cwd="/",
                                   stdin=pipe, stdout=pipe, text=True)  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"

    yield take
    for process in started:
        process.communicate()


def ask(run_id: str, count: int, slots: int = 3) -> tuple[list[str] | None, str]:
    reply, _ = leases.lease({"slots": slots, "count": count, "run_id": run_id}, b"")
    return reply["places"], reply.get("why", "")


def shown() -> dict[str, dict[str, object] | None]:
    found: dict[str, dict[str, object] | None] = leases.leases({"slots": 3}, b"")[0]["places"]
    return found


def test_slots_are_held_by_descriptors_and_named() -> None:
    assert ask("one", 2) == (["slot-0", "slot-1"], "")
    taken, why = ask("two", 2)
    assert taken is None
    assert why.startswith("only 1 of 3 slots are free, 2 are needed: slot-0, slot-1 held by user ")
    assert f"(uid {ME}), run one since 2" in why
    with pytest.raises(RefusedError, match="it has 3 slots, and 4 are asked for"):
        ask("two", 4)
    assert [holder and (holder["uid"], holder["run"]) for holder in shown().values()] == [
        (ME, "one"),
        (ME, "one"),
        None,
    ]
    assert abs(time.time() - int(str((shown()["slot-0"] or {})["since"]))) < 60
    assert leases.release({"run_id": "one"}, b"")[0] == {"released": 2}
    assert ask("two", 2) == (["slot-0", "slot-1"], "")
    assert leases.lease({"slots": None, "count": 2, "run_id": "three"}, b"")[0] == {"places": []}  # nothing is counted


def test_who_asks_again_holds_no_more_than_once() -> None:
    assert ask("one", 2)[0] == ["slot-0", "slot-1"]
    assert ask("one", 2)[0] == ["slot-0", "slot-1"]
    assert leases.still_held({"run_id": "one"}, b"")[0] == {"places": ["slot-0", "slot-1"]}


def test_an_agent_holds_what_it_was_promised_or_is_not_started() -> None:
    promised, _ = ask("one", 2)
    assert promised is not None
    handed = leases.hand_over("one", promised)
    program = "import sys; print('up', flush=True); sys.stdin.read()"
    agent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             pass_fds=[each.fileno() for each in handed])  # fmt: skip
    for each in handed:
        each.close()
    assert ask("two", 2)[0] is None  # the agent's own descriptors hold them
    agent.communicate()
    assert ask("two", 2)[0] == promised
    leases.release({"run_id": "two"}, b"")
    with pytest.raises(RefusedError, match="slot-0, slot-1 is held no longer for run two"):
        leases.hand_over("two", promised)
    assert leases.hand_over("three", []) == []


def test_whose_doing_it_is_is_the_kernels_word(other_user: Callable[..., None]) -> None:
    other_user("slot-0", "slot-1", "slot-2", "slot-1/forged-abc234/1", "slot-2/not a run\x1b[2J/1")
    taken, why = ask("mine", 1)
    assert taken is None
    assert f"slot-0, slot-2 held by user nobody (uid {NOBODY}), who names no run" in why
    assert f"slot-1 held by user nobody (uid {NOBODY}), run forged-abc234 since 1970" in why
    assert "\x1b" not in why


def test_what_another_user_says_of_a_place_is_not_believed(other_user: Callable[..., None]) -> None:
    assert ask("mine", 1)[0] == ["slot-0"]
    other_user("slot-0/forged-abc234/1", "slot-1/forged-abc234/1")
    other_user("slot-2", kind="SOCK_DGRAM")  # another kind of socket holds nothing
    assert [holder and (holder["uid"], holder["run"]) for holder in shown().values()] == [(ME, "mine"), None, None]
    assert ask("two", 2)[0] == ["slot-1", "slot-2"]


def test_where_the_kernel_does_not_tell_the_run_is_named_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Iterator[bytes]:
        raise FileNotFoundError(2, "sock_diag")

    assert ask("mine", 2)[0] == ["slot-0", "slot-1"]
    monkeypatch.setattr(abstract_sockets, "_ask_kernel", refuse)
    assert [holder and (holder["uid"], holder["run"]) for holder in shown().values()] == [
        (None, "mine"), (None, "mine"), None
    ]  # fmt: skip
    assert "held by a user whom its kernel does not tell, run mine since" in ask("two", 2)[1]


def test_names_of_other_kinds_are_passed_over(machine: str) -> None:
    with socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX) as odd:
        odd.bind(f"\0{machine}/".encode() + bytes(range(60)) + b"\xff")
        names = [each.name for each in abstract_sockets.owned_names()]
    assert len([name for name in names if name.startswith(machine)]) == 1
