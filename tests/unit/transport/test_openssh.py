"""What `ssh -G` makes of an address, and the `ssh` that reaches it."""

from __future__ import annotations

import os
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import BackendError
from orchestrator.transport import openssh
from orchestrator.transport.address import Address
from orchestrator.transport.openssh import (
    LoginRefusedError,
    Resolved,
    has_master,
    hops_to,
    in_words,
    over_ssh,
    refusal,
    resolve,
    ssh_argv,
)
from orchestrator.transport.ssh_options import KeyKind

OWN = [
    "ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=yes", "-oUpdateHostKeys=no",
    "-oNoHostAuthenticationForLocalhost=no",
]  # fmt: skip
ODD = ["sh", "-c", 'echo "$1"', "it's; rm -rf ~", "a b"]


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """An `ssh` that prints this, and notes how it was called."""
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$*\" > {tmp_path}/called\ncat <<'END'\n{text}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "called"


def test_openssh_reads_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, known = tmp_path / "id", tmp_path / "known"
    key.touch()
    known.touch()
    text = (
        f"hostname 10.0.0.7\nuser me\nport 2222\nidentityfile {tmp_path}/none\nidentityfile {key}\nproxyjump gate\n"
        f"userknownhostsfile {known} {tmp_path}/none\nglobalknownhostsfile /dev/null"
    )
    called = stand_in(tmp_path, monkeypatch, text)
    found = resolve(Address("n1", user="you", port=22))
    assert called.read_text() == "-G -l you -p 22 -- n1\n"
    assert (found.hostname, found.user, found.port, found.jump) == ("10.0.0.7", "me", 2222, "gate")
    assert (found.keys, found.known_hosts) == ((str(key),), (str(known), "/dev/null"))
    assert resolve(Address("n1", jump="other", key=str(key))).jump == "other"


def hop(address: Address, **resolved: Any) -> list[tuple[Address, Resolved]]:
    return [(address, Resolved("10.0.0.7", "me", **resolved))]


def test_an_unreachable_machine_is_tried_by_hand_as_orch_reaches_it() -> None:
    error = in_words(hop(Address("n1", user="me", port=2222, jump="gate")), "No route to host")
    assert error.message == "n1: can't be reached by ssh: No route to host"
    assert error.hint == "try: ssh -p 2222 -J gate me@n1"
    assert error.transient


def test_a_refused_login_is_of_the_machine_that_refused_it() -> None:
    gate = (Address("gate"), Resolved("10.0.0.1"))
    (n1,) = hop(Address("n1"), jump="gate", other_keys={"/k": KeyKind.FOLDER})
    own = in_words([n1, gate], "me@10.0.0.7: Permission denied (publickey).")
    assert isinstance(own, LoginRefusedError)
    assert (own.resolved, own.transient) == (n1[1], False)
    assert own.message == (
        "n1 (10.0.0.7:22 through gate): Permission denied (publickey) for user me; keys tried: none found; "
        "IdentityFile /k is a folder"
    )
    its = in_words([n1, gate], "me@10.0.0.1: Permission denied (keyboard-interactive).")
    assert isinstance(its, LoginRefusedError)
    assert (its.resolved, its.transient) == (gate[1], True)
    assert its.message.startswith("gate: the login asks for a password or a second factor, and orch never prompts")
    assert its.message.endswith("open a connection with: ssh gate")
    assert its.hint.splitlines()[1:] == [
        "  Host gate", "    ControlMaster auto", "    ControlPath ~/.ssh/cm-%C", "    ControlPersist 8h",
    ]  # fmt: skip


def test_who_has_the_lines_already_is_only_told_the_command() -> None:
    error = refusal(Address("n1"), Resolved("n1", opens_master=True), ["password"])
    assert (error.message.rpartition("; ")[2], error.hint) == ("open a connection with: ssh n1", "")


def test_a_master_without_room_is_said_to_have_none() -> None:
    said = "mux_client_request_session: session request failed: Session open refused by peer\nConnection closed"
    assert "has no room for another session" in in_words(hop(Address("n1")), said).message


class Master:
    """A stand-in for ssh, for which a connection is open or not, and a socket."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.code = folder / "cm-%x", folder / "code"
        program = folder / "ssh"
        text = f"hostname n1\nport 22\ncontrolmaster auto\ncontrolpath {self.path}"
        check = f'[ "$2" != check ] || exit "$(cat {self.code})"'
        program.write_text(f"#!/bin/sh\n{check}\ncat <<'END'\n{text}\nEND\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self.path))

    def is_used(self, code: int) -> bool:
        self.code.write_text(str(code))
        argv = ssh_argv(Address("n1"))
        return f"-oControlPath={self.path}".replace("%", "%%") in argv and "-oProxyCommand=false" in argv


def test_an_open_connection_is_used_and_a_stale_socket_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master(tmp_path, monkeypatch)
    assert resolve(Address("n1")).opens_master
    assert master.is_used(0)
    assert not master.is_used(255)
    assert "-oControlPath=none" in ssh_argv(Address("n1"))
    master.code.write_text("0")
    assert "-oControlPath=none" in ssh_argv(Address("n1"), shares=False)


def test_another_user_s_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master = Master(tmp_path, monkeypatch)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(BackendError, match=r"n1: .*/cm-%x, its ControlPath .* belongs to another user"):
        master.is_used(0)


def test_an_open_connection_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Master(tmp_path, monkeypatch)
    (tmp_path / "ssh").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(openssh, "MASTER_SECONDS", 0.1)
    with pytest.raises(BackendError, match="does not answer; open it again with: ssh n1") as caught:
        has_master(Address("n1"), Resolved("n1", control_path=str(tmp_path / "cm-%x")))
    assert caught.value.hint == "end the old connection first: ssh -O exit n1"


def test_proxyjump_none_is_no_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "hostname n1\nport 22\nproxyjump none")
    assert resolve(Address("n1")).jump is None


def test_the_systems_ssh_goes_where_the_session_goes_and_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "hostname 10.0.0.7\nport 2222\nciphers chacha20-poly1305@openssh.com,aes128-gcm@openssh.com\nproxyjump none"
    stand_in(tmp_path, monkeypatch, text)
    argv = ssh_argv(Address("n1", "me", 22, key="~/.ssh/id", jump="a,you@b:23"))
    assert argv[-7:-1] == ["-l", "me", "-p", "22", "-i", "~/.ssh/id"]
    assert {"-oBatchMode=yes", "-oStrictHostKeyChecking=yes"} <= set(argv)
    assert "-oCiphers=aes128-gcm@openssh.com,chacha20-poly1305@openssh.com" in argv
    last = shlex.split(argv[-1].removeprefix("-oProxyCommand=").replace("%%", "%"))  # the way through b
    assert last[-4:] == ["-W", "[10.0.0.7]:2222", "--", "b"]
    assert last[last.index("-l") :][:4] == ["-l", "you", "-p", "23"]
    assert "-oStrictHostKeyChecking=yes" in last
    first = shlex.split(next(each for each in last if each.startswith("-oProxyCommand=")).replace("%%", "%"))
    assert first[-4:] == ["-W", "[10.0.0.7]:2222", "--", "a"]


def test_a_host_that_looks_like_an_option_is_refused() -> None:
    with pytest.raises(BackendError, match="'-oProxyCommand=x' is not a host name"):
        resolve(Address("-oProxyCommand=x"))


def test_over_ssh_words_stay_words_and_only_what_the_profile_says_is_said() -> None:
    plain = over_ssh(hop(Address("n1")), ODD, terminal=True, shares=False)
    assert plain == [*OWN, "-t", "--", "n1", shlex.join(ODD)]
    whole = over_ssh(hop(Address("-oProxyCommand=x", "me", 2222, "/k")), ["true"], terminal=False, shares=False)
    assert whole[len(OWN) :] == ["-l", "me", "-p", "2222", "-i", "/k", "-T", "--", "-oProxyCommand=x", "true"]


def test_over_ssh_gateways_too_have_to_be_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, "hostname 10.0.0.7\nport 22")
    option = over_ssh(hops_to(Address("n1", jump="a,you@b:23")), ["true"], terminal=False, shares=False)[len(OWN)]
    assert option == ssh_argv(Address("n1", jump="a,you@b:23"), shares=False)[-1]
