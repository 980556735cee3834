"""Host keys that are revoked, signed, or filed in other ways: orch takes those that ssh takes, and no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import LAPTOP, STEPS, Lab
from tests.testbed.people import public

HOME = "/home/alice"
KNOWN = f"{HOME}/.ssh/known_hosts"


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def keygen(lab: Lab, *options: str) -> None:
    lab.control.output(LAPTOP, "ssh-keygen", "-q", *options)


def make_key(lab: Lab, name: str, kind: str = "ed25519") -> str:
    """A new key pair in her home; the public key."""
    keygen(lab, "-t", kind, "-N", "", "-f", name)
    return public(lab.home / name)


def key_of(lab: Lab, host: str) -> str:
    return public(lab.control.cluster.root / "keys" / host)


def knows(lab: Lab, *lines: str) -> None:
    """Her known_hosts."""
    lab.write(".ssh/known_hosts", "".join(f"{line}\n" for line in lines))


def certify(lab: Lab, host: str, *options: str) -> None:
    """Give the host's sshd a certificate of its key by the authority `ca`."""
    lab.write(f"{host}.pub", key_of(lab, host) + "\n")
    keygen(lab, "-s", "ca", "-h", "-I", host, *options, f"{host}.pub")
    lab.control.file(host, "/srv/cert.pub").write_text((lab.home / f"{host}-cert.pub").read_text())
    lab.control.sshd(host, "HostCertificate /srv/cert.pub")


def asked(lab: Lab, host: str = "n1") -> tuple[bool, str]:
    """Does orch take the host's key, and what does it say? ssh must be of the same mind."""
    own = ["ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=yes", host, "true"]
    checks = lab.orch("doctor", "--profile", lab.profile(hosts=[host]), "--json").json
    check = next(check for check in checks if check["what"] == "ssh")
    taken = check["level"] == "ok"
    assert taken == (lab.control.run(LAPTOP, *own).code == 0), check
    return taken, check["value"]


def test_keys_that_a_file_revokes_are_refused(lab: Lab) -> None:
    keys = key_of(lab, "n1"), key_of(lab, "n2")
    lab.write("list", f"# stolen\n{keys[0]} n1's\n")
    lab.write("n2.pub", f"{keys[1]}\n")
    keygen(lab, "-k", "-f", "krl", "n2.pub")
    lab.write(".ssh/config", f"RevokedHostKeys {HOME}/list\n")
    taken, said = asked(lab, "n1")
    assert not taken
    assert "its host key (ssh-ed25519 SHA256:" in said
    assert f"is revoked: {HOME}/list (RevokedHostKeys) says so" in said
    assert asked(lab, "n2")[0]
    lab.write(".ssh/config", f"Host n?\n  RevokedHostKeys {HOME}/krl\n")
    assert asked(lab, "n1")[0]
    assert f"is revoked: {HOME}/krl (RevokedHostKeys) says so" in asked(lab, "n2")[1]
    lab.write(".ssh/config", f"RevokedHostKeys {HOME}/none\n")
    taken, said = asked(lab, "n1")
    assert not taken
    assert f"no host key can be held against {HOME}/none (RevokedHostKeys" in said


def test_a_line_that_revokes_is_named(lab: Lab) -> None:
    own, others = key_of(lab, "n1"), key_of(lab, "n2")
    knows(lab, f"n1 {own}", f"n2 {others}", "", f"@revoked * {own}")
    taken, said = asked(lab, "n1")
    assert not taken
    assert f"is revoked: {KNOWN}:4 says so" in said
    assert asked(lab, "n2")[0]
    lab.write("revoked", f"@revoked n* {others}\n")  # as /etc/ssh/ssh_known_hosts would have it
    lab.write(".ssh/config", "GlobalKnownHostsFile ~/revoked /etc/ssh/ssh_known_hosts\n")
    assert f"is revoked: {HOME}/revoked:1 says so" in asked(lab, "n2")[1]


def test_authorities_beside_keys_are_no_hindrance(lab: Lab) -> None:
    authority = make_key(lab, "ca")
    knows(lab, f"@cert-authority * {authority}", *(f"{host} {key_of(lab, host)}" for host in ("n1", "n2", "n3")))
    certify(lab, "n2", "-n", "n2")
    run = lab.submit(lab.job("steps", STEPS, args=["6", "0"]), "--profile", lab.profile())
    assert lab.wait(run).code == 0, lab.orch("why", run).out


def test_hosts_that_an_authority_vouches_for(lab: Lab) -> None:
    """No key of theirs is known; n3 is reached through n1."""
    authority = make_key(lab, "ca")
    for host in ("n1", "n2", "n3"):
        certify(lab, host, "-n", host)
    lab.control.gate("n3", "n1")
    knows(lab, f"@cert-authority n* {authority}")
    profile = lab.profile(hosts=["n1", "n2", {"host": "n3", "jump": "n1"}])
    run = lab.submit(lab.job("steps", STEPS, args=["40", "0.1"]), "--profile", profile)
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert "weights" in lab.log(run)
    assert "checksums verified" in lab.orch("checkpoints", run, "--verify").out
    lab.assert_nothing_left(run)


def wrong_name(lab: Lab) -> str:
    certify(lab, "n1", "-n", "n2")
    return "name is not a listed principal"


def expired(lab: Lab) -> str:
    certify(lab, "n1", "-n", "n1", "-V", "20200101:20200201")
    return "expired"


def revoked_authority(lab: Lab) -> str:
    certify(lab, "n1", "-n", "n1")
    knows(lab, f"@cert-authority * {public(lab.home / 'ca')}", f"@revoked * {public(lab.home / 'ca')}")
    return "revoked"


def no_certificate(lab: Lab) -> str:
    return "No ED25519 host key is known"


@pytest.mark.parametrize("case", [wrong_name, expired, revoked_authority, no_certificate])
def test_certificates_that_ssh_does_not_take(lab: Lab, case: Callable[[Lab], str]) -> None:
    knows(lab, f"@cert-authority * {make_key(lab, 'ca')}")
    why = case(lab)
    taken, said = asked(lab)
    assert not taken
    assert said.startswith("can't be reached by ssh: ") or "n1: can't be reached by ssh: " in said
    assert why.lower() in said.lower()


def test_keys_that_are_filed_in_other_ways(lab: Lab) -> None:
    own, others = key_of(lab, "n1"), key_of(lab, "n2")
    cases: Sequence[tuple[Sequence[str], str, bool]] = [
        ([f"n1 {others}", f"n1 {own}"], "", True),  # one name for several machines
        ([f"n1 {others}"], "", False),
        ([f"n?,!n2 {own}"], "", True),
        ([f"n*,!n1 {own}"], "", False),
        ([f"n1 {others}", f"lab {own}"], "HostKeyAlias lab", True),
        ([f"n1 {own}", f"lab {others}"], "HostKeyAlias lab", False),
        ([f"n1 {own}"], "HostKeyAlias lab", False),
    ]
    for lines, config, expected in cases:
        knows(lab, *lines)
        lab.write(".ssh/config", f"{config}\n")
        assert asked(lab)[0] == expected, lines
    lab.write(".ssh/config", "")
    knows(lab, f"n1 {own}", f"n1 {others}")
    keygen(lab, "-H", "-f", ".ssh/known_hosts")
    assert asked(lab)[0]


def test_a_host_is_asked_for_the_kind_of_key_that_is_known_and_on_its_port(lab: Lab) -> None:
    key = make_key(lab, "rsa", "rsa")
    lab.control.file("n1", "/srv/rsa").write_text((lab.home / "rsa").read_text())
    lab.control.file("n1", "/srv/rsa").chmod(0o600)
    lab.control.sshd("n1", "Port 2222", "HostKey /srv/rsa")
    lab.write(".ssh/config", "Host n1\n  Port 2222\n")
    for lines, expected in (
        ([f"[n1]:2222 {key}"], True),
        ([f"n1 {key_of(lab, 'n1')}"], True),  # as ssh: filed without a port
        ([f"[n1]:2222 {key_of(lab, 'n2')}", f"n1 {key_of(lab, 'n2')}"], False),
    ):
        knows(lab, *lines)
        assert asked(lab)[0] == expected, lines


def test_the_files_are_left_as_they_are(lab: Lab) -> None:
    """No key is learned, nor sorted out."""
    file = Path(lab.home / ".ssh/known_hosts")
    before = file.read_text()
    assert asked(lab)[0]
    assert file.read_text() == before
