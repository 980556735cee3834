"""What `ssh -G` makes of an address, and the `ssh` that reaches it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from orchestrator.errors import BackendError
from orchestrator.transport.address import Address
from orchestrator.transport.openssh import over_ssh, resolve, ssh_argv

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


def test_an_unreachable_machine_is_tried_by_hand_as_orch_reaches_it() -> None:
    error = _in_words(Address("n1", user="me", port=2222, jump="gate"), "Permission denied (publickey).")
    assert error.message == "n1: can't be reached by ssh: Permission denied (publickey)."
    assert error.hint == "try: ssh -p 2222 -J gate me@n1"


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
    plain = over_ssh(Address("n1"), ODD, terminal=True)
    assert plain[:5] == ["ssh", "-oStrictHostKeyChecking=yes", "-t", "--", "n1"]
    assert shlex.split(plain[5]) == ODD
    whole = over_ssh(Address("-oProxyCommand=x", "me", 2222, "/k"), ["true"], terminal=False)
    assert whole[2:] == ["-l", "me", "-p", "2222", "-i", "/k", "-T", "--", "-oProxyCommand=x", "true"]


def test_over_ssh_gateways_too_have_to_be_known() -> None:
    option = over_ssh(Address("n1", jump="first,you@second:23"), ["true"], terminal=False)[2]
    second = shlex.split(option.removeprefix("-oProxyCommand=").replace("%h", "n1").replace("%p", "22"))
    assert second[:6] == ["ssh", "-oStrictHostKeyChecking=yes", "-l", "you", "-p", "23"]
    assert second[7:] == ["-W", "[n1]:22", "--", "second"]
    nested = shlex.split(second[6].removeprefix("-oProxyCommand="))
    assert nested == ["ssh", "-oStrictHostKeyChecking=yes", "-W", "[%n1]:%22", "--", "first"]  # %%h, for the next ssh
