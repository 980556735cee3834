"""The options of OpenSSH's configuration, as `ssh -G` prints them: those that orch's own connection honours,
and those that need the user's ssh program.

A test compares these tables with the options that the installed ssh prints.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# `ssh -G` has applied the first of these to the address. orch's own connection reads the next ones. With the last ones,
# orch finds a connection that the user has opened.
HONOURED: Final = _words("""
    addkeystoagent canonicaldomains canonicalizefallbacklocal canonicalizehostname canonicalizemaxdots
    canonicalizepermittedcnames host hostname ignoreunknown port tag user
    ciphers compression connecttimeout globalknownhostsfile hostkeyalgorithms hostkeyalias identityfile kexalgorithms
    knownhostscommand macs proxyjump pubkeyacceptedalgorithms pubkeyacceptedkeytypes requiredrsasize revokedhostkeys
    userknownhostsfile verifyhostkeydns
    controlmaster controlpath controlpersist
""")
# Both ways of connecting follow orch's own rule: host keys must be known and are never learned, nobody is asked for
# anything, silence is noticed, and a busy sshd is tried again. Without a person, the last line has no effect.
OVERRIDDEN: Final = _words("""
    batchmode checkhostip connectionattempts fingerprinthash hashknownhosts loglevel logverbose
    nohostauthenticationforlocalhost numberofpasswordprompts serveralivecountmax serveraliveinterval
    stricthostkeychecking syslogfacility tcpkeepalive updatehostkeys visualhostkey
    challengeresponseauthentication kbdinteractiveauthentication kbdinteractivedevices passwordauthentication
""")
# These concern terminals, forwarded ports, tunnels, shells, certificates, or ways to log in that are used only by hand.
WITHOUT_EFFECT: Final = _words("""
    casignaturealgorithms channeltimeout clearallforwardings dynamicforward enableescapecommandline enablesshkeysign
    escapechar exitonforwardfailure forkafterauthentication forwardagent forwardx11 forwardx11timeout forwardx11trusted
    gatewayports gssapiauthentication gssapiclientidentity gssapidelegatecredentials gssapikexalgorithms
    gssapirenewalforcesrekey gssapiserveridentity gssapitrustdns hostbasedacceptedalgorithms hostbasedkeytypes ipqos
    localcommand localforward obscurekeystroketiming permitlocalcommand permitremoteopen proxyusefdpass rekeylimit
    remotecommand remoteforward requesttty securitykeyprovider sendenv sessiontype stdinnull streamlocalbindmask
    streamlocalbindunlink tunnel tunneldevice versionaddendum warnweakcrypto xauthlocation
""")
# Options that need the user's ssh program, except with the values given here.
PROGRAM: Final[Mapping[str, frozenset[str]]] = {
    "AddressFamily": frozenset({"any"}),
    "BindAddress": frozenset(),
    "BindInterface": frozenset(),
    "CertificateFile": frozenset(),
    "GSSAPIKeyExchange": frozenset({"no"}),
    "HostbasedAuthentication": frozenset({"no"}),
    "IdentitiesOnly": frozenset({"no"}),  # see `_of_keys`
    "IdentityAgent": frozenset({"none", "SSH_AUTH_SOCK"}),  # see `_of_keys`
    "PKCS11Provider": frozenset({"none"}),
    "PreferredAuthentications": frozenset(),  # see `why_program`
    "ProxyCommand": frozenset({"none"}),
    "PubkeyAuthentication": frozenset({"yes", "true", "unbound", "host-bound"}),
    "RefuseConnection": frozenset(),
    "SetEnv": frozenset(),
    "UseKeychain": frozenset({"no"}),
}
_HEADER: Final = b"-----BEGIN OPENSSH PRIVATE KEY-----"
_MAGIC: Final = b"openssh-key-v1\0"
_MOST: Final = 4096  # bytes of a key file that tell its kind
_PUBLIC: Final = (b"ssh-", b"ecdsa-", b"sk-ssh-", b"sk-ecdsa-")


class KeyKind(StrEnum):
    """The kind of a file that IdentityFile names."""

    PLAIN = "a private key"
    ENCRYPTED = "a private key with a passphrase"
    PUBLIC = "a public key"
    ON_DEVICE = "the key of a hardware device"
    FOLDER = "a folder"
    UNREADABLE = "a file that can't be read"


def why_program(found: Mapping[str, Sequence[str]], keys: Mapping[str, KeyKind]) -> str:
    """Return why a host needs the user's ssh program: the names of the options. Return "" if orch's own connection can
    do all that they say.

    found: the values of each option, as `ssh -G` prints them. keys: the existing files among the possible key files.
    """
    needed = []
    for name, enough in PROGRAM.items():
        values = found.get(name.lower(), ())
        if not values or set(values) <= enough or name in ("IdentitiesOnly", "IdentityAgent"):
            continue
        if name == "PreferredAuthentications" and "publickey" in values[0].split(","):
            continue
        needed.append(name)
    return ", ".join([*needed, *_of_keys(found, keys)])


def _of_keys(found: Mapping[str, Sequence[str]], keys: Mapping[str, KeyKind]) -> list[str]:
    """Return the reasons that concern the user's keys. orch's own connection reads key files, and uses either all keys
    of the agent at SSH_AUTH_SOCK or none.
    """
    needed = [f"IdentityFile {path} is {kind}" for path, kind in keys.items()
              if kind in (KeyKind.PUBLIC, KeyKind.ON_DEVICE)]  # fmt: skip
    agent = found.get("identityagent", ["SSH_AUTH_SOCK"])[0]
    own = os.environ.get("SSH_AUTH_SOCK")
    if agent not in PROGRAM["IdentityAgent"] and os.path.expanduser(agent) != own:
        needed.append("IdentityAgent")
    has_agent = agent != "none" and bool(own)
    is_only = found.get("identitiesonly", ["no"])[0] == "yes"
    if is_only and has_agent and not (keys and set(keys.values()) == {KeyKind.PLAIN}):
        needed.append("IdentitiesOnly")
    return needed


def kind_of(path: str) -> KeyKind:
    """Return the kind of a key file."""
    if os.path.isdir(path):
        return KeyKind.FOLDER
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # whatever it is, opening it must not hang
        with open(descriptor, "rb") as file:
            data = file.read(_MOST)
    except OSError:
        return KeyKind.UNREADABLE
    if data.startswith(_PUBLIC):
        return KeyKind.PUBLIC
    if not data.startswith(_HEADER):
        return KeyKind.ENCRYPTED if b"ENCRYPTED" in data[:200] else KeyKind.PLAIN
    cipher, kind = _of_openssh(data[len(_HEADER) :].partition(b"-----")[0])
    if kind.startswith(b"sk-"):
        return KeyKind.ON_DEVICE
    return KeyKind.PLAIN if cipher in (b"none", b"") else KeyKind.ENCRYPTED


def _of_openssh(text: bytes) -> tuple[bytes, bytes]:
    """Return (cipher, kind of key) of a private key in OpenSSH's format; empty texts if it is damaged."""
    text = b"".join(text.split())
    try:
        data = base64.b64decode(text[: len(text) // 4 * 4])
    except binascii.Error:
        return b"", b""
    if not data.startswith(_MAGIC):
        return b"", b""
    rest = data[len(_MAGIC) :]
    cipher, rest = _string(rest)
    _, rest = _string(rest)  # the function that turns the passphrase into a key
    _, rest = _string(rest)  # and its options
    public, _ = _string(rest[4:])  # after the number of keys
    return cipher, _string(public)[0]


def _string(data: bytes) -> tuple[bytes, bytes]:
    count = int.from_bytes(data[:4], "big")
    return data[4 : 4 + count], data[4 + count :]
