"""Every option of OpenSSH's configuration is honoured, or needs the user's ssh program."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from orchestrator.transport.address import Address
from orchestrator.transport.openssh import resolve
from orchestrator.transport.ssh_options import (
    HONOURED,
    OVERRIDDEN,
    PROGRAM,
    WITHOUT_EFFECT,
    KeyKind,
    kind_of,
    why_program,
)

# Options that `ssh -G` prints only if they are set.
MORE = (
    "BindAddress=10.0.0.1", "BindInterface=lo", "CertificateFile=/c", "ControlPath=/s", "DynamicForward=80",
    "HostKeyAlias=a", "IdentityAgent=/a", "IgnoreUnknown=x", "KnownHostsCommand=/k", "LocalCommand=l",
    "LocalForward=80_n1:80", "PKCS11Provider=/p", "PreferredAuthentications=publickey", "ProxyCommand=nc",
    "RemoteCommand=r", "RemoteForward=80_n1:80", "RevokedHostKeys=/r", "SetEnv=A=1",
)  # fmt: skip


def options_of(*more: str) -> dict[str, list[str]]:
    """The options that this machine's ssh prints, as the loader reads them."""
    argv = ["ssh", "-G", "-F", "none", *(f"-o{each.replace('_', ' ')}" for each in more), "--", "n1"]
    found: dict[str, list[str]] = {}
    for line in subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name.lower(), []).append(value)
    return found


def test_every_option_of_this_ssh_is_in_one_of_the_tables() -> None:
    tables = [HONOURED, OVERRIDDEN, WITHOUT_EFFECT, {name.lower() for name in PROGRAM}]
    printed = options_of(*MORE).keys() | options_of("ProxyJump=gate").keys()
    assert {each.partition("=")[0].lower() for each in MORE} <= printed
    assert printed - set().union(*tables) == set()
    assert sum(map(len, tables)) == len(set().union(*tables))


def test_the_defaults_of_this_ssh_need_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    assert why_program(options_of(), {"/key": KeyKind.ENCRYPTED}) == ""


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("AddressFamily=inet6", "AddressFamily"),
        ("BindAddress=10.0.0.1", "BindAddress"),
        ("BindInterface=lo", "BindInterface"),
        ("CertificateFile=/c", "CertificateFile"),
        ("GSSAPIKeyExchange=yes", "GSSAPIKeyExchange"),
        ("HostbasedAuthentication=yes", "HostbasedAuthentication"),
        ("IdentityAgent=/other", "IdentityAgent"),
        ("IdentityAgent=none", ""),
        ("IdentityAgent=/agent", ""),
        ("PKCS11Provider=/p", "PKCS11Provider"),
        ("PKCS11Provider=none", ""),
        ("PreferredAuthentications=keyboard-interactive", "PreferredAuthentications"),
        ("PreferredAuthentications=publickey,password", ""),
        ("ProxyCommand=nc %h %p", "ProxyCommand"),
        ("ProxyCommand=none", ""),
        ("ProxyJump=gate", ""),
        ("PubkeyAuthentication=no", "PubkeyAuthentication"),
        ("SetEnv=A=1", "SetEnv"),
        ("SendEnv=LANG", ""),
    ],
)
def test_an_option_that_fabric_can_not_honour_needs_the_program(
    option: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    assert why_program(options_of(option), {}) == why


@pytest.mark.parametrize(
    ("agent", "keys", "why"),
    [
        ("/agent", {"/key": KeyKind.PLAIN}, ""),
        ("/agent", {"/key": KeyKind.ENCRYPTED}, "IdentitiesOnly"),
        ("/agent", {}, "IdentitiesOnly"),
        ("", {"/key": KeyKind.ENCRYPTED}, ""),  # no agent has the key, so that its passphrase is missing in any case
        ("", {"/k.pub": KeyKind.PUBLIC}, "IdentityFile /k.pub is a public key"),
        ("", {"/sk": KeyKind.ON_DEVICE}, "IdentityFile /sk is the key of a hardware device"),
        ("", {"/folder": KeyKind.FOLDER}, ""),
    ],
)
def test_identitiesonly_with_keys_of_an_agent(
    agent: str, keys: dict[str, KeyKind], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    assert why_program(options_of("IdentitiesOnly=yes"), keys) == why


def test_kinds_of_key_files(tmp_path: Path) -> None:
    for name, options in (("plain", ["-N", ""]), ("locked", ["-N", "secret"]), ("pem", ["-N", "secret", "-m", "PEM"])):
        kind = "rsa" if name == "pem" else "ed25519"
        subprocess.run(["ssh-keygen", "-q", "-t", kind, *options, "-f", tmp_path / name], check=True)
    (tmp_path / "cut").write_bytes((tmp_path / "plain").read_bytes()[:60])
    # The beginning of a key on a device: one cannot be made without the device.
    names = (b"none", b"none", b"")
    blob = b"openssh-key-v1\0" + b"".join(len(each).to_bytes(4, "big") + each for each in names)
    public = b"sk-ssh-ed25519@openssh.com"
    public = len(public).to_bytes(4, "big") + public
    blob += (1).to_bytes(4, "big") + len(public).to_bytes(4, "big") + public
    encoded = base64.b64encode(blob)
    (tmp_path / "sk").write_bytes(b"-----BEGIN OPENSSH PRIVATE KEY-----\n" + encoded + b"\n-----END\n")
    found = {name: kind_of(str(tmp_path / name)) for name in ("plain", "locked", "pem", "plain.pub", "cut", "sk", "")}
    assert found == {
        "plain": KeyKind.PLAIN, "locked": KeyKind.ENCRYPTED, "pem": KeyKind.ENCRYPTED, "plain.pub": KeyKind.PUBLIC,
        "cut": KeyKind.PLAIN, "sk": KeyKind.ON_DEVICE, "": KeyKind.FOLDER,
    }  # fmt: skip
    assert kind_of(str(tmp_path / "none")) == KeyKind.UNREADABLE


def test_the_profile_s_jump_replaces_a_proxycommand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ssh -J` does."""
    program = tmp_path / "ssh"
    config = tmp_path / "config"
    config.write_text("Host n1\n  ProxyCommand nc %h %p\n")
    program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {config} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert resolve(Address("n1")).needs_program == "ProxyCommand"
    there = resolve(Address("n1", jump="gate"))
    assert (there.needs_program, there.jump) == ("", "gate")
