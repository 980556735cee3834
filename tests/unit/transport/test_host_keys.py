"""What known_hosts files say of a host: as `ssh-keygen` finds it; and what RevokedHostKeys revokes."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from paramiko import SSHException

from orchestrator.errors import BackendError
from orchestrator.transport.address import Address
from orchestrator.transport.connection import NeedsOpenSshError, _why_unreachable, connect
from orchestrator.transport.host_keys import Mark, known_host, revoked_by
from orchestrator.transport.openssh import Resolved

MakeKey = Callable[[str], Path]


def keygen(*options: str | Path) -> str:
    return subprocess.run(["ssh-keygen", *options], capture_output=True, text=True, check=False).stdout


@pytest.fixture
def make_key(tmp_path: Path) -> MakeKey:
    """Makes a key pair of that name; gives the public one."""

    def make(name: str) -> Path:
        keygen("-q", "-t", "ed25519", "-N", "", "-C", name, "-f", tmp_path / name)
        return tmp_path / f"{name}.pub"

    return make


def line_of(key: Path) -> str:
    return " ".join(key.read_text().split()[:2])


def presented(key: Path) -> tuple[str, bytes]:
    """Kind and contents of a public key or a certificate, as a host shows them."""
    kind, text, *_ = key.read_text().split()
    return kind, base64.b64decode(text)


NAMES = ["n1", "N1", "n2", "n11", "n1.lab", "x.lab", "[n1]:2222", "[n1]:22", "10.0.0.7", "::1", "n[1]", "zed"]
PATTERNS = [
    "n1", "N1", "n1,n2", "n?", "n*", "*", "*.lab,!x.lab", "!x.lab,*.lab", "!n1", "[n1]:2222", "[*]:2222", "10.0.0.*",
    "::1", "n[1]", "n[12]", "", "n1,", "|1|nonsense|nonsense=", "#n1", "@other n1",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_for_the_hosts_that_ssh_keygen_finds_them_for(tmp_path: Path, make_key: MakeKey, name: str) -> None:
    key = line_of(make_key("a"))
    marks = ["", "@revoked ", "@cert-authority  ", " \t"]
    lines = [f"{mark}{pattern} {key} a comment" for pattern in PATTERNS for mark in marks]
    file, hashed = tmp_path / "known", tmp_path / "hashed"
    file.write_text("\n".join([*lines, "garbage", "n1", "n1 ssh-ed25519"]) + "\n")
    hashed.write_text("".join(f"{each} {key}\n" for each in ("n1", "[n1]:2222", "n1.lab")))
    keygen("-H", "-f", hashed)
    assert all(line.startswith("|1|") for line in hashed.read_text().splitlines())
    for path in (file, hashed):
        found = keygen("-F", name.lower(), "-f", path).splitlines()  # ssh looks up names in small letters
        expected = {int(line.split()[5]) for line in found if line.startswith("# Host ")}
        host = known_host(Resolved(name, known_hosts=(str(path),)))
        known = {int(key.where.rpartition(":")[2]) for key in (*host.keys, *host.authorities, *host.revoked)}
        assert known == expected
        assert bool(expected) == (path == file or name in ("n1", "N1", "[n1]:2222", "n1.lab"))


def test_marks_ports_aliases_and_several_files(tmp_path: Path, make_key: MakeKey) -> None:
    own, other, authority = (line_of(make_key(name)) for name in ("own", "other", "authority"))
    user, everybodys = tmp_path / "known_hosts", tmp_path / "ssh_known_hosts"
    user.write_text(f"# mine\n[n1]:2222 {own}\nn2 {other}\nzed {other}\n")
    everybodys.write_text(f"@cert-authority *.lab,n* {authority}\n@revoked * {other}\nn1 {other}\n")

    def known(name: str, port: int = 22, alias: str | None = None) -> tuple[str, list[str], list[str], list[str]]:
        files = (str(user), str(tmp_path / "none"), str(tmp_path), str(everybodys))
        found = known_host(Resolved(name, port=port, known_hosts=files, host_key_alias=alias))
        kinds = (found.keys, found.authorities, found.revoked)
        return found.name, *([Path(key.where).name for key in keys] for keys in kinds)  # type: ignore[return-value]

    ca, revoked = ["ssh_known_hosts:1"], ["ssh_known_hosts:2"]
    assert known("n1") == ("n1", ["ssh_known_hosts:3"], ca, revoked)
    assert known("n1", 2222)[:2] == ("[n1]:2222", ["known_hosts:2"])
    assert known("n2", 2222)[:3] == ("[n2]:2222", ["known_hosts:3"], ca)  # as ssh: filed without a port
    assert known("n1", 2222, "Zed") == ("zed", ["known_hosts:4"], [], [*revoked])
    assert known("x")[1:] == ([], [], revoked)
    found = known_host(Resolved("n1", known_hosts=(str(everybodys),)))
    assert [key.mark for key in (*found.keys, *found.authorities, *found.revoked)] == list(Mark)
    assert found.kinds == {"ssh-ed25519"}


def test_revoked_keys_as_a_list_and_as_a_binary_file(tmp_path: Path, make_key: MakeKey) -> None:
    good, bad, authority = make_key("good"), make_key("bad"), make_key("authority")
    keygen("-q", "-s", tmp_path / "authority", "-h", "-I", "x", "-n", "n1", "-z", "7", good)
    certificate = tmp_path / "good-cert.pub"
    (tmp_path / "list").write_text(f"# revoked\n\n{bad.read_text()}{line_of(bad)}\n")
    (tmp_path / "empty").touch()
    keygen("-q", "-k", "-f", tmp_path / "krl", bad)
    (tmp_path / "serials").write_text("serial: 7\n")
    keygen("-q", "-k", "-f", tmp_path / "krl_serial", "-s", authority, tmp_path / "serials")
    keygen("-q", "-k", "-f", tmp_path / "krl_authority", authority)
    for name, revoked in {
        "list": {"bad"}, "empty": set(), "krl": {"bad"}, "krl_serial": {"cert"}, "krl_authority": {"cert"},
    }.items():  # fmt: skip
        shown = {"bad": bad, "good": good, "cert": certificate}
        assert {each for each, key in shown.items() if revoked_by(str(tmp_path / name), *presented(key))} == revoked


@pytest.mark.parametrize("content", [None, "no key at all\n", "SSHKRL\n\0 cut off"])
def test_a_file_of_revoked_keys_that_can_not_be_read_revokes_all(
    tmp_path: Path, make_key: MakeKey, content: str | None
) -> None:
    file = tmp_path / "revoked"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BackendError, match=rf"host keys can't be checked against {file} \(RevokedHostKeys") as caught:
        revoked_by(str(file), *presented(make_key("good")))
    assert "until then ssh refuses every host key, too" in caught.value.hint


def test_a_host_of_which_only_the_authority_is_known_is_left_to_openssh(tmp_path: Path, make_key: MakeKey) -> None:
    file = tmp_path / "known"
    file.write_text(f"\n@cert-authority * {line_of(make_key('authority'))}\n")
    with pytest.raises(NeedsOpenSshError, match=f"n1: its host key can only be verified by {file}:2, which"):
        connect(Address("n1"), Resolved("n1", known_hosts=(str(file),)), None)
    with pytest.raises(NeedsOpenSshError, match="verified by /usr/bin/ask %H"):
        connect(Address("n1"), Resolved("n1", known_hosts_command="/usr/bin/ask %H"), None)


@pytest.mark.parametrize(
    "words", ["No existing session", "Error reading SSH protocol banner", "Timeout opening channel."]
)
def test_an_sshd_that_stops_answering_is_named_so(words: str) -> None:
    assert "sshd there took the connection, and then did not answer" in _why_unreachable(SSHException(words), 5.0)
