"""The host keys that orch takes from a server on this machine, and the words in which it refuses the others."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from orchestrator.errors import BackendError
from orchestrator.transport.address import Address
from orchestrator.transport.connection import connect
from orchestrator.transport.openssh import Resolved
from tests.patience import PATIENCE
from tests.unit.transport.test_host_keys import MakeKey, keygen, line_of, make_key

__all__ = ["make_key"]  # a fixture


class AllBut(paramiko.ServerInterface):
    """Takes any key of any user but bob."""

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_FAILED if username == "bob" else paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"


class Server:
    """An SSH server with these host keys."""

    def __init__(self, *keys: Path, interface: type[AllBut] = AllBut) -> None:
        self.interface = interface
        self.keys = [paramiko.PKey.from_path(key.with_suffix("")) for key in keys]
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.transports: list[paramiko.Transport] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                transport = paramiko.Transport(self.listener.accept()[0])
            except OSError:  # closed
                return
            for key in self.keys:
                transport.add_server_key(key)
            transport.start_server(event=threading.Event(), server=self.interface())
            self.transports.append(transport)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for transport in self.transports:
            transport.close()
            transport.join(PATIENCE)


class Lab:
    """A server with a host key `own`, a user with a key of her own, and her known_hosts."""

    def __init__(self, folder: Path, make_key: MakeKey) -> None:
        self.own, self.other = make_key("own"), make_key("other")
        keygen("-q", "-t", "rsa", "-N", "", "-f", folder / "rsa")
        self.rsa, self.me, self.known = folder / "rsa.pub", make_key("me").with_suffix(""), folder / "known_hosts"
        self.server = Server(self.own, self.rsa)
        self.name = f"[127.0.0.1]:{self.server.port}"

    def says(self, *lines: str, **resolved: Any) -> str:
        """Return why the server's key is refused if known_hosts has these lines; "" if the key is taken."""
        self.known.write_text("".join(f"{line}\n" for line in lines))
        values = {"user": "alice", "keys": (str(self.me),), "known_hosts": (str(self.known),), "agent": False}
        where = Resolved("127.0.0.1", port=self.server.port, **{**values, **resolved})
        try:
            connect(Address("n1"), where, None).close()
        except BackendError as error:
            return f"{error.message} | {error.hint}"
        return ""


@pytest.fixture
def lab(tmp_path: Path, make_key: MakeKey) -> Iterator[Lab]:
    found = Lab(tmp_path, make_key)
    yield found
    found.server.close()


def test_an_unknown_key_is_refused_with_its_fingerprint(lab: Lab) -> None:
    blob = base64.b64decode(line_of(lab.own).split()[1])
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    said = lab.says()
    assert f"its host key is not in known_hosts (ssh-ed25519 SHA256:{digest})" in said
    assert f"ssh-keyscan -p {lab.server.port} -t ed25519 127.0.0.1" in said


def test_a_changed_key_is_refused(lab: Lab) -> None:
    said = lab.says(f"{lab.name} {line_of(lab.other)}")
    assert "host key verification failed: its key has changed" in said
    assert f"{lab.known}:1 has another" in said
    assert f"ssh-keygen -R '{lab.name}'" in said


def test_a_user_whom_the_host_does_not_take(lab: Lab) -> None:
    said = lab.says(f"{lab.name} {line_of(lab.own)}", user="bob")
    assert re.search(r"Permission denied \(publickey\) for user bob; keys tried: .*/me .*ssh-add", said)


def test_keys_that_are_revoked_are_refused(lab: Lab) -> None:
    known, file = f"{lab.name} {line_of(lab.own)}", lab.known.with_name("list")
    file.write_text(f"# stolen\n{line_of(lab.own)} n1's\n")
    said = lab.says(known, revoked_host_keys=str(file))
    assert "its host key (ssh-ed25519 SHA256:" in said
    assert f"is revoked in {file} (RevokedHostKeys)" in said
    assert lab.says(f"{lab.name} {line_of(lab.rsa)}", revoked_host_keys=str(file)) == ""
    keygen("-q", "-k", "-f", file, lab.other)
    assert lab.says(known, revoked_host_keys=str(file)) == ""
    assert "host keys can't be checked against" in lab.says(known, revoked_host_keys=f"{file}.none")
    assert f"is revoked in {lab.known}:3" in lab.says(known, "", f"@revoked * {line_of(lab.own)}")
    assert lab.says(known, f"@revoked * {line_of(lab.other)}") == ""


def test_keys_that_are_filed_in_other_ways(lab: Lab) -> None:
    own, other = line_of(lab.own), line_of(lab.other)
    cases: list[tuple[list[str], str | None, bool]] = [
        ([f"{lab.name} {other}", f"{lab.name} {own}"], None, True),  # one name for several machines
        ([f"{lab.name} {other}"], None, False),
        ([f"[127.0.0.?]:{lab.server.port},!n2 {own}"], None, True),
        ([f"[127.*]:{lab.server.port},!{lab.name} {own}"], None, False),
        ([f"127.0.0.1 {own}"], None, True),  # as ssh: filed without a port
        ([f"{lab.name} {other}", f"lab {own}"], "lab", True),
        ([f"{lab.name} {own}", f"lab {other}"], "lab", False),
        ([f"{lab.name} {own}"], "lab", False),
        ([f"@cert-authority * {other}", f"{lab.name} {own}"], None, True),
    ]
    for lines, alias, is_taken in cases:
        assert (lab.says(*lines, host_key_alias=alias) == "") == is_taken, lines


def test_a_host_is_asked_for_the_kind_of_key_that_is_known(lab: Lab) -> None:
    assert lab.says(f"{lab.name} {line_of(lab.rsa)}") == ""


def test_the_file_is_left_as_it_is(lab: Lab) -> None:
    """No key is learned, nor sorted out."""
    lines = f"{lab.name} {line_of(lab.other)}", "garbage", f"{lab.name} {line_of(lab.own)}"
    assert lab.says(*lines) == ""
    assert lab.known.read_text().splitlines() == list(lines)
    assert sorted(os.listdir(lab.known.parent)) == sorted(
        {"known_hosts", "rsa", "rsa.pub", *(f"{name}{end}" for name in ("me", "own", "other") for end in ("", ".pub"))}
    )


def test_the_systems_own_words_tell_what_keeps_a_host_away(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(BackendError, match=rf"n1 \(127.0.0.1:{port}\): can't be reached: Connection refused") as caught:
        connect(Address("n1"), Resolved("127.0.0.1", port=port, agent=False), None)
    assert caught.value.hint.startswith("is sshd running there? try: ssh n1")
