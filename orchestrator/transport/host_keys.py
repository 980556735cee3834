"""Finds a host's key in known_hosts files and RevokedHostKeys, by OpenSSH's rules (sshd(8), SSH_KNOWN_HOSTS).

This module parses the files itself, because a machine may lack OpenSSH. RevokedHostKeys may be binary, so `ssh-keygen`
reads it. Certificates are not checked, because only the system's `ssh` can check them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from orchestrator.errors import BackendError
from orchestrator.transport.openssh import Resolved

KRL_MAGIC: Final = b"SSHKRL\n\0"
NOT_REVOKED, REVOKED = 0, 1  # exit codes of `ssh-keygen -Q`


class Mark(StrEnum):
    """The mark at the beginning of a line of a known_hosts file."""

    KEY = ""
    AUTHORITY = "@cert-authority"
    REVOKED = "@revoked"


@dataclass(frozen=True)
class KnownKey:
    """A line of a known_hosts file that applies to the host."""

    where: str  # file:line
    mark: Mark
    kind: str
    blob: bytes


@dataclass(frozen=True)
class KnownHost:
    """The known keys and the revoked keys of one host."""

    name: str  # the name in known_hosts: HOST, [HOST]:PORT or its HostKeyAlias
    keys: tuple[KnownKey, ...] = ()
    authorities: tuple[KnownKey, ...] = ()
    revoked: tuple[KnownKey, ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of the known keys. orch requests a key of these kinds from the host first."""
        return frozenset(key.kind for key in self.keys)


def known_host(resolved: Resolved) -> KnownHost:
    """Return the host's keys in the known_hosts files. A file that can't be read is skipped, as ssh does."""
    names = _names(resolved)
    lines = [(name, key) for name in names for path in resolved.known_hosts for key in _lines(path, name)]
    # As with ssh, a key that is listed without a port counts only if no key is listed with the port.
    name = next((name for name, key in lines if key.mark is Mark.KEY), names[0])
    return KnownHost(
        names[0],
        keys=tuple(key for filed, key in lines if key.mark is Mark.KEY and filed == name),
        authorities=tuple(key for _, key in lines if key.mark is Mark.AUTHORITY),
        revoked=tuple(key for _, key in lines if key.mark is Mark.REVOKED),
    )


def _names(resolved: Resolved) -> list[str]:
    if resolved.host_key_alias:
        return [resolved.host_key_alias.lower()]
    host = resolved.hostname.lower()
    return [host] if resolved.port == 22 else [f"[{host}]:{resolved.port}", host]


def _lines(path: str, name: str) -> Iterator[KnownKey]:
    try:
        text = Path(path).read_text("utf-8", "replace")
    except OSError:
        return
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        mark = next((mark for mark in (Mark.AUTHORITY, Mark.REVOKED) if words[:1] == [mark]), Mark.KEY)
        hosts, kind, key, *_ = [*words[mark is not Mark.KEY :], "", "", ""]
        if hosts.startswith(("#", "@")) or not _is_for(hosts, name):
            continue
        try:
            blob = base64.b64decode(key, validate=True)
        except binascii.Error:
            continue
        if blob:
            yield KnownKey(f"{path}:{number}", mark, kind, blob)


def _is_for(hosts: str, name: str) -> bool:
    """Return True if the first field of a line (a hash of a name, or patterns with `*`, `?`, `!`) matches the host."""
    if hosts.startswith("|1|"):
        salt, _, digest = hosts[3:].partition("|")
        try:
            expected = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
            return hmac.compare_digest(expected, base64.b64decode(digest))
        except binascii.Error:
            return False
    patterns = hosts.lower().split(",")
    if any(_matches(pattern[1:], name) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(_matches(pattern, name) for pattern in patterns)


def _matches(pattern: str, name: str) -> bool:
    if pattern == name or not set(pattern) & set("*?"):
        return pattern == name
    wild = "".join({"*": ".*", "?": "."}.get(char) or re.escape(char) for char in pattern)
    return re.fullmatch(wild, name) is not None


def revoked_by(path: str, kind: str, blob: bytes) -> bool:
    """Return True if RevokedHostKeys names the key or certificate. Raises BackendError if that can't be decided.

    The file is a list of public keys or a key revocation list (KRL).
    """
    with tempfile.TemporaryDirectory(prefix="orch-") as folder:
        key, krl = Path(folder, "key.pub"), path
        key.write_text(f"{kind} {base64.b64encode(blob).decode()}\n")
        try:
            with open(path, "rb") as file:
                is_list = file.read(len(KRL_MAGIC)) != KRL_MAGIC
        except OSError as error:
            raise _unreadable(path, error.strerror or str(error)) from error
        if is_list:  # `ssh-keygen -Q` reads only a KRL, so the list is converted
            krl = f"{folder}/krl"
            made = _ssh_keygen("-q", "-k", "-f", krl, path)
            if made.returncode != 0:
                raise _unreadable(path, made.stderr.strip())
        asked = _ssh_keygen("-Q", "-f", krl, str(key))
    if asked.returncode not in (NOT_REVOKED, REVOKED):
        raise _unreadable(path, asked.stderr.strip())
    return asked.returncode == REVOKED


def _ssh_keygen(*options: str) -> subprocess.CompletedProcess[str]:
    argv = ["ssh-keygen", *options]
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return subprocess.CompletedProcess(argv, 127, "", "there is no ssh-keygen here")


def _unreadable(path: str, why: str) -> BackendError:
    return BackendError(
        f"host keys can't be checked against {path} (RevokedHostKeys of your ssh configuration): {why}",
        "repair the file; until then ssh refuses every host key, too",
    )
