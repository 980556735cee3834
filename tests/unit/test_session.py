"""The server on a node and how it gets there, over a pipe instead of SSH; and what `ssh -G` makes of an address."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from orchestrator.address import Address
from orchestrator.archive import node_archive
from orchestrator.backends.again import in_order
from orchestrator.backends.hosts import Handle, Host, hosts_of, read_handle
from orchestrator.errors import BackendError
from orchestrator.node.serve import HOME
from orchestrator.openssh import resolve, ssh_argv
from orchestrator.session import _BOOTSTRAP
from orchestrator.store import RunDir


def server(path: Path) -> subprocess.Popen[bytes]:
    """The bootstrap as a login shell would start it."""
    code, size = f'exec("{_BOOTSTRAP}")', str(len(node_archive()))
    argv = [sys.executable, "-I", "-S", "-c", code, "BOUNDARY", str(path), size]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def ask(process: subprocess.Popen[bytes], **request: Any) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    reply: dict[str, Any] = json.loads(process.stdout.readline())
    process.stdout.read(reply["bytes"])
    return reply


def test_the_server_is_sent_once_and_answers(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "node.pyz"
    for word in ("need", "have"):
        with server(path) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            version = ".".join(map(str, sys.version_info[:2]))
            assert process.stdout.readline().decode() == f"BOUNDARY {version} {word}\n"
            if word == "need":
                process.stdin.write(node_archive())
            hello = ask(process, id=5, do="hello", workdir=str(tmp_path / "work"))
            assert (hello["id"], hello["workdir"]) == (5, str(tmp_path / "work"))
            assert ask(process, id=6, do="nonsense")["error"].startswith("the request nonsense is not understood")
            assert "No such file" in ask(process, id=7, do="read", path=str(tmp_path / "none"), count=1)["error"]
            refused = ask(process, id=8, do="remove", run_dir=str(tmp_path), run_id="r-1")["error"]
            assert refused == f"{tmp_path} is not the folder of run r-1"
            process.stdin.close()
            assert process.wait(20) == 0
    assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(node_archive()).digest()


def test_every_request_has_its_function() -> None:
    for verb, module in HOME.items():
        assert callable(getattr(import_module(f"orchestrator.node.{module}"), verb))


def test_a_folder_that_can_not_be_made_is_named_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with server(tmp_path / "file" / "cache" / "node.pyz") as process:
        assert process.stdout is not None
        assert b" error [Errno 20] Not a directory" in process.stdout.readline()
        assert process.wait(20) == 1


def test_the_bootstrap_is_one_line_that_every_shell_passes_on() -> None:
    assert not set(_BOOTSTRAP) & set('\n!"')


# -- addresses


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


def test_the_profiles_words_hold_for_every_host_that_has_none_of_its_own() -> None:
    hosts = [{"host": "a"}, {"host": "b", "user": "you", "jump": "g"}]
    spare = {"host": "c", "addr": "10.0.0.9"}
    profile = {"hosts": hosts, "user": "me", "port": 23, "nodes": 2, "spares": [spare]}
    nodes, spares = hosts_of(profile)
    assert [host.address for host in nodes] == [Address("a", "me", 23), Address("b", "you", 23, jump="g")]
    assert spares == [Host(Address("c", "me", 23), "10.0.0.9")]


def test_a_handle_comes_back_and_a_damaged_one_still_knows_the_hosts(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert read_handle(run) is None
    handle = Handle("submitted", 2, (Host(Address("a")), Host(Address("b"), python="p")), {1: (7, 9)}, (0, 2))
    handle.write(run)
    assert read_handle(run) == handle
    run.write("run.json", {"profile": {"hosts": [{"host": "a"}], "nodes": 1}})
    (tmp_path / "handle.json").write_text('{"state": "submitted", "sta')
    assert read_handle(run) == Handle("submitted", 0, (Host(Address("a")),), {}, (0,))


def test_node_0_of_another_start_is_where_the_newest_checkpoint_is() -> None:
    assert in_order([0, 1, 2], {}, -1) == [0, 1, 2]
    assert in_order([0, 1, 2], {0: 10, 1: 10, 2: 5}, 10) == [0, 1, 2]
    assert in_order([0, 1, 2], {0: -1, 1: 10, 2: 5}, 10) == [1, 0, 2]
    assert in_order([0, 2], {0: 5, 2: 10}, -1) == [2, 0]
    assert in_order([0, 1, 2], {0: -1, 1: 10, 2: 5}, 15) == [0, 1, 2]  # node 0 is given it
