"""A login that was refused is not repeated, and nobody is asked for anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from orchestrator.errors import BackendError
from orchestrator.transport import pool as transport
from orchestrator.transport.address import Address
from orchestrator.transport.logins import Logins
from orchestrator.transport.openssh import LoginRefusedError, Resolved, refusal, resolve
from orchestrator.transport.pool import OWN, ConnectionPool
from tests.unit.transport.test_host_keys import MakeKey, line_of, make_key
from tests.unit.transport.test_host_keys_refused import AllBut, Server
from tests.unit.transport.test_pool import Shell

__all__ = ["make_key"]  # a fixture

HERE = Resolved("n1", configuration="first")


def refuse(logins: Logins, resolved: Resolved = HERE) -> None:
    logins.refuse(refusal(Address("n1"), resolved, ["publickey"]))


def is_refused(logins: Logins, resolved: Resolved = HERE) -> bool:
    try:
        logins.check(resolved)
    except LoginRefusedError as error:
        return "orch does not repeat a login that was refused" in error.hint
    return False


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_refusal_counts_until_something_has_changed(tmp_path: Path, is_shared: bool) -> None:
    key = tmp_path / "key"
    key.write_text("1")
    mine = Resolved("n1", keys=(str(key),), configuration="first")
    logins = Logins(tmp_path / "logins" if is_shared else None)
    assert not is_refused(logins, mine)
    refuse(logins, mine)
    assert is_refused(logins, mine)
    assert is_refused(Logins(logins.folder), mine) == is_shared  # another process
    assert not is_refused(logins, Resolved("n1", keys=(str(key),), configuration="second"))
    key.write_text("another")
    assert not is_refused(logins, mine)
    refuse(logins, mine)
    logins.accept(mine)
    assert (is_refused(logins, mine), logins.works(mine)) == (False, True)
    key.write_text("1")
    assert not is_refused(logins, Resolved("n1", configuration="second"))
    refuse(logins, mine)
    assert (is_refused(logins, mine), logins.works(mine)) == (True, False)
    logins.forget(mine)
    assert not is_refused(logins, mine)


def test_the_memory_is_the_user_s_own_and_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "logins"
    refuse(Logins(folder))
    (file,) = folder.iterdir()
    assert [path.stat().st_mode & 0o777 for path in (folder, file)] == [0o700, 0o600]
    file.write_text('{"refused": ')
    assert not is_refused(Logins(folder))


class Asks(AllBut):
    """Accepts the key, and then asks for a code."""

    logins = 0

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        type(self).logins += 1
        return paramiko.AUTH_PARTIALLY_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "keyboard-interactive"

    def check_auth_interactive(self, username: str, submethods: str) -> Any:
        raise AssertionError("the client has asked for the question")


class Password(AllBut):
    """Takes only a password."""

    logins = 0

    def get_allowed_auths(self, username: str) -> str:
        type(self).logins += 1
        return "password"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_FAILED


@pytest.fixture
def servers(tmp_path: Path, make_key: MakeKey, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Server]]:
    """SSH servers on this machine with the names of their interfaces."""
    own, me, known = make_key("own"), make_key("me").with_suffix(""), tmp_path / "known_hosts"
    found = {each.__name__: Server(own, interface=each) for each in (Asks, Password, Shell)}
    known.write_text("".join(f"[127.0.0.1]:{each.port} {line_of(own)}\n" for each in found.values()))
    monkeypatch.setattr(
        transport, "resolve",
        lambda address: Resolved(
            "127.0.0.1", "alice", found[address.host].port, (str(me),), (str(known),), agent=False,
            configuration=address.host,
        ),
    )  # fmt: skip
    yield found
    for each in found.values():
        each.close()


@pytest.mark.parametrize(
    ("interface", "what"), [(Asks, "a second factor"), (Password, "a password")], ids=["code", "password"]
)
def test_orch_never_asks_and_tries_a_refused_login_once(
    interface: type[Asks | Password], what: str, servers: dict[str, Server], capfd: pytest.CaptureFixture[str]
) -> None:
    interface.logins, name = 0, interface.__name__
    pool = ConnectionPool()
    for _ in range(3):
        with pytest.raises(BackendError, match=f"{name}: the login asks for {what}, and orch never prompts") as caught:
            pool.session(Address(name), "~/.orch")
        assert caught.value.transient
        pool.failures.clear()
    assert interface.logins == 1
    pool.try_again()
    for _ in range(2):
        with pytest.raises(BackendError, match="never prompts"):
            pool.session(Address(name), "~/.orch")
        pool.failures.clear()
    assert interface.logins == 2
    assert capfd.readouterr() == ("", "")


SSH = """\
#!/bin/sh
case "$1" in
-G) printf 'hostname n1\\nport 22\\n' ;;
*) echo tried >>{folder}/tries; cat {folder}/says >&2; exit {code} ;;
esac
"""


def test_a_command_by_ssh_is_tried_first_where_orch_s_own_connection_has_not_logged_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise ssh would print lines that explain nothing, and would repeat a refused login each time."""
    program, says, tries, pool = tmp_path / "ssh", tmp_path / "says", tmp_path / "tries", ConnectionPool()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def way(code: int, said: str) -> list[str]:
        program.write_text(SSH.format(folder=tmp_path, code=code))
        program.chmod(0o755)
        says.write_text(said)
        return pool.over_ssh(Address("n1"), ["hostname"], terminal=False)

    assert way(0, "")[-4:] == ["-T", "--", "n1", "hostname"]
    with pytest.raises(BackendError, match=r"n1: its open connection \(ControlMaster\) has no room"):
        way(255, "mux_client_request_session: session request failed: Session open refused by peer")
    for _ in range(2):
        with pytest.raises(LoginRefusedError, match="n1: the login asks for a password or a second factor"):
            way(255, "me@n1: Permission denied (keyboard-interactive).")
    assert len(tries.read_text().splitlines()) == 3
    pool.logins.accept(resolve(Address("n1")))
    assert way(255, "not tried")[-1] == "hostname"


def test_a_host_that_orch_s_own_connection_reaches_needs_no_open_connection(
    servers: dict[str, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ConnectionPool()
    assert pool.session(Address("Shell"), str(tmp_path / "orch")).connection == OWN
    pool.close()
    monkeypatch.setattr(transport, "has_master", lambda *_: True)
    pool.sessions.clear()
    assert pool.session(Address("Shell"), str(tmp_path / "orch")).connection == OWN
    pool.close()
