"""GPUs and slots that two runs can't both hold, and whose word counts for who holds them."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.node.server import leases
from orchestrator.node.server.request import RefusedError
from orchestrator.node.system import abstract_sockets
from orchestrator.protocol.places.devices import Device

NOBODY = 65534
ME = os.getuid()


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A machine without GPUs on which nobody else holds anything; what names begin with."""
    prefix = f"orch-test-{secrets.token_hex(4)}"
    monkeypatch.setattr(leases, "PREFIX", prefix)
    monkeypatch.setattr(leases, "machine_devices", tuple)
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


def ask(run_id: str, count: int, slots: int | None = 3, run_dir: str = "/nowhere") -> tuple[list[str] | None, str]:
    where = {"run_dir": run_dir, "node": 0, "start": 0}
    reply, _ = leases.lease({"slots": slots, "count": count, "run_id": run_id, **where}, b"")
    return reply["places"], reply.get("why", "")


def close(places: leases.Places) -> None:
    for each in (each for sockets in places.values() for each in sockets):
        each.close()


def shown() -> dict[str, dict[str, object] | None]:
    found: dict[str, dict[str, object] | None] = leases.holders_of(leases.places(3))
    return found


def test_slots_are_held_by_descriptors_and_named() -> None:
    before = int(time.time())
    assert ask("one", 2) == (["slot-0", "slot-1"], "")
    taken, why = ask("two", 2)
    assert taken is None
    assert why.startswith("only 1 of 3 slots is free, 2 are needed: slot-0, slot-1 held by user ")
    assert f"(uid {ME}), run one since 2" in why
    with pytest.raises(RefusedError, match="the host has 3 slots, and the run needs 4"):
        ask("two", 4)
    assert [holder and (holder["uid"], holder["run"]) for holder in shown().values()] == [
        (ME, "one"),
        (ME, "one"),
        None,
    ]
    assert before - 1 <= int(str((shown()["slot-0"] or {})["since"])) <= time.time() + 1  # of whole seconds
    assert leases.release({"run_id": "one"}, b"")[0] == {"released": 2}
    assert ask("two", 2) == (["slot-0", "slot-1"], "")
    assert ask("three", 2, None) == ([], "")  # nothing is counted


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
                             pass_fds=[each.fileno() for sockets in handed.values() for each in sockets])  # fmt: skip
    close(handed)
    assert ask("two", 2)[0] is None  # the agent's own descriptors hold them
    agent.communicate()
    assert ask("two", 2)[0] == promised
    leases.release({"run_id": "two"}, b"")
    with pytest.raises(RefusedError, match="slot-0, slot-1 is held no longer for run two"):
        leases.hand_over("two", promised)
    assert leases.hand_over("three", []) == {}


def test_each_agent_of_several_on_one_machine_gets_its_part_and_the_rest_stays_held() -> None:
    assert ask("one", 2)[0] == ["slot-0", "slot-1"]
    first = leases.hand_over("one", ["slot-1"])
    assert leases.still_held({"run_id": "one"}, b"")[0] == {"places": ["slot-0"]}
    close(first)
    with pytest.raises(RefusedError, match="slot-1 is held no longer for run one"):
        leases.hand_over("one", ["slot-0", "slot-1"])
    assert leases.held == {}
    assert ask("two", 2)[0] == ["slot-0", "slot-1"]


def test_a_start_whose_answer_was_lost_is_told_what_its_agent_holds(tmp_path: Path) -> None:
    promised, _ = ask("one", 2)
    assert promised is not None
    handed = leases.hand_over("one", promised)  # as the agent's own descriptors are
    assert ask("one", 2, run_dir=str(tmp_path))[0] is None
    (tmp_path / "nodes" / "0").mkdir(parents=True)
    (tmp_path / "nodes" / "0" / "start_0").touch()
    assert ask("one", 2, run_dir=str(tmp_path)) == (promised, "")
    close(handed)


def test_what_nobody_asks_about_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PROMISE_SECONDS", 0.01)
    taken, _ = ask("one", 2)
    assert taken == ["slot-0", "slot-1"]
    while any(shown().values()):
        time.sleep(0.01)
    assert leases.held == {}


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
    def refuse(question: bytes, flags: int) -> Iterator[bytes]:
        raise FileNotFoundError(2, "sock_diag")

    assert ask("mine", 2)[0] == ["slot-0", "slot-1"]
    monkeypatch.setattr(abstract_sockets, "ask_kernel", refuse)
    assert [holder and (holder["uid"], holder["run"]) for holder in shown().values()] == [
        (None, "mine"), (None, "mine"), None
    ]  # fmt: skip
    assert "held by a user whom its kernel does not tell, run mine since" in ask("two", 2)[1]


def test_names_of_other_kinds_are_passed_over(machine: str) -> None:
    with socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX) as odd:
        odd.bind(f"\0{machine}/".encode() + bytes(range(60)) + b"\xff")
        names = [each.name for each in abstract_sockets.owned_names()]
    assert len([name for name in names if name.startswith(machine)]) == 1


def test_gpus_are_held_by_their_uuids_of_those_that_may_be_and_that_nobody_else_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["GPU-5e2c0001-94c6-5df8-9b0e-1f2a3b4c5d6e", "GPU-5e2c0002-94c6-5df8-9b0e-1f2a3b4c5d6e",
             "MIG-77aa0001-94c6-5df8-9b0e-1f2a3b4c5d6e", "MIG-77aa0002-94c6-5df8-9b0e-1f2a3b4c5d6e"]  # fmt: skip
    cards = tuple(Device(name, number, name) for number, name in enumerate(names))
    used = {names[0]: {"uid": 7, "user": "carol", "run": None, "since": None, "program": "python, pid 9"}}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(leases, "machine_devices", lambda: cards)
    monkeypatch.setattr(leases, "used_by_others", lambda: used)
    run_id = f"{'long' * 10}-abc234.123"
    assert ask(run_id, 1) == ([names[1]], "")
    reply, _ = leases.lease(
        {"count": 1, "among": [names[3], "GPU-gone"], "run_id": "two", "run_dir": "/nowhere", "node": 0, "start": 0},
        b"",
    )
    assert reply == {"places": [names[3]]}
    assert [holder and (holder["run"], holder.get("program")) for holder in shown().values()] == [
        (None, "python, pid 9"), (run_id, None), None, ("two", None)
    ]  # fmt: skip
    taken, why = ask("three", 2)
    assert taken is None
    assert why.startswith("only 1 of 4 GPUs is free, 2 are needed: ")
    assert f"{names[0]} used by python, pid 9, of user carol (uid 7): a program of no run of orch" in why
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert list(shown()) == [names[2]]  # what the login shell allows
