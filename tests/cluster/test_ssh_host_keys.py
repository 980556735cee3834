"""Host keys that an authority has signed: orch takes those that ssh takes, and no others.

Known, changed and revoked keys are tested in tests/unit/transport/test_host_keys_refused.py.
"""

from __future__ import annotations

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


def test_certificates_that_ssh_does_not_take(lab: Lab) -> None:
    authority = make_key(lab, "ca")
    for case in (wrong_name, expired, revoked_authority):
        knows(lab, f"@cert-authority * {authority}")
        why = case(lab)
        taken, said = asked(lab)
        assert not taken, case
        assert said.startswith("can't be reached by ssh: ") or "n1: can't be reached by ssh: " in said
        assert why.lower() in said.lower()
