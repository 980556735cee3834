"""Connections to machines over SSH. Only this module imports fabric.

OpenSSH itself (`ssh -G`) reads the user's configuration, and fabric connects with the result. Host keys are checked
against the known_hosts files and are never learned. Only the system's `ssh` can check a certificate.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import random
import shlex
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import paramiko
from fabric import Config, Connection
from paramiko.config import SSHConfig
from paramiko.ssh_exception import NoValidConnectionsError

from orchestrator.errors import BackendError
from orchestrator.transport.address import Address
from orchestrator.transport.carrier import BUFFER
from orchestrator.transport.host_keys import KnownHost, known_host, revoked_by
from orchestrator.transport.openssh import (
    CONNECT_SECONDS,
    KEEPALIVE_SECONDS,
    LoginRefusedError,
    Resolved,
    refusal,
    through,
)

TRIES: Final = 3
QUICK_SECONDS: Final = 2.0
REFUSED: Final = os.strerror(errno.ECONNREFUSED)
LOST: Final = (OSError, EOFError, paramiko.SSHException)  # the exceptions of a connection that breaks


# paramiko's messages about a server that stops answering before, during and after the handshake.
_SILENT: Final = ("Error reading SSH protocol banner", "No existing session", "Authentication timeout", "Timeout")

_NO_KEY: Final = "No authentication methods available"

Opened = TypeVar("Opened")


class NeedsOpenSshError(BackendError):
    """Raised if only the user's ssh program can connect to the host. `why` says why, for `orch doctor`."""

    def __init__(self, message: str, hint: str = "", *, why: str) -> None:
        super().__init__(message, hint)
        self.why = why


class _AskedError(Exception):
    """Raised in place of the question that paramiko would ask at the terminal, if a host has accepted the key and asks
    for more.
    """


class _HostKeyError(Exception):
    """Raised if a host's key is refused. The arguments are the problem and the hint."""


@dataclass(frozen=True)
class _HostKeyCheck:
    """Checks a host's key for paramiko. paramiko gets no known_hosts file, so it calls this check for every host."""

    known: KnownHost
    resolved: Resolved

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        """Raise _HostKeyError unless the key is known and not revoked."""
        kind, blob = key.get_name(), key.asbytes()
        digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
        shown, owner = f"{kind} SHA256:{digest}", "don't go there: ask its owner for its new key"
        for line in self.known.revoked:
            if line.blob == blob:
                raise _HostKeyError(f"its host key ({shown}) is revoked in {line.where}", owner)
        if kind == "ssh-rsa" and key.get_bits() < self.resolved.rsa_bits:
            raise _HostKeyError(
                f"its host key ({shown}) has {key.get_bits()} bits, and RequiredRSASize of your ssh configuration is "
                f"{self.resolved.rsa_bits}",
                "ask its owner for a longer key",
            )
        revoked, certificate = self.resolved.revoked_host_keys, key.public_blob
        shows = (certificate.key_type, certificate.key_blob) if certificate else (kind, blob)
        if revoked and revoked_by(revoked, *shows):
            raise _HostKeyError(f"its host key ({shown}) is revoked in {revoked} (RevokedHostKeys)", owner)
        if any(line.blob == blob for line in self.known.keys):
            return
        name, port = self.resolved.hostname, self.resolved.port
        if self.known.keys:
            raise _HostKeyError(
                "host key verification failed: its key has changed (a reinstalled host, or a man in the middle; "
                f"{self.known.keys[0].where} has another key than {shown})",
                "ask the host's owner whether the key has changed; only then remove the old key: ssh-keygen "
                f"-R '{self.known.name}'",
            )
        raise _HostKeyError(
            f"its host key is not in known_hosts ({shown})",
            "compare the fingerprint with the machine's own, then: "
            f"ssh-keyscan{f' -p {port}' if port != 22 else ''} -t {_scanned_as(kind)} {name} >> ~/.ssh/known_hosts",
        )


def connect(
    address: Address, resolved: Resolved, gateway: Connection | None, on_answer: Callable[[], None] = lambda: None
) -> Connection:
    """Return an open connection. Raises BackendError with the reason if the connection fails.

    `on_answer` is called at each try, after the machine has accepted the TCP connection and before the handshake.
    """
    known = known_host(resolved)
    if not known.keys and (known.authorities or resolved.known_hosts_command or resolved.is_key_in_dns):
        what = known.authorities[0].where if known.authorities else resolved.known_hosts_command or "VerifyHostKeyDNS"
        raise NeedsOpenSshError(
            f"{address.host}: its host key can only be verified by {what}, which needs OpenSSH's ssh, and "
            "this machine has no ssh",
            "install OpenSSH's client, or add the host's own key to known_hosts",
            why=f"{what} verifies its host key",
        )
    return patiently(lambda: _open(address, resolved, known, gateway, on_answer))


def patiently(begin: Callable[[], Opened]) -> Opened:
    """Call `begin` and return its result. If a busy sshd has dropped the connection, call `begin` again, TRIES times in
    total.
    """
    for attempt in range(1, TRIES + 1):
        begun = time.monotonic()
        try:
            return begin()
        except BackendError as error:
            is_slow = time.monotonic() - begun > QUICK_SECONDS  # a time-out, not an sshd that is too busy to listen
            if not error.transient or is_slow or attempt == TRIES or isinstance(error, LoginRefusedError):
                raise
            time.sleep(random.uniform(0.2, 1.0) * attempt)  # noqa: S311 (sshd drops some of many connections)
    raise AssertionError


def _open(
    address: Address, resolved: Resolved, known: KnownHost, gateway: Connection | None, on_answer: Callable[[], None]
) -> Connection:
    connection = Connection(
        resolved.hostname, user=resolved.user, port=resolved.port, gateway=gateway,
        connect_timeout=resolved.reach_seconds,
        config=Config(ssh_config=SSHConfig(), lazy=True),  # `ssh -G` has read the configuration
        connect_kwargs={
            "key_filename": list(resolved.keys), "allow_agent": resolved.agent, "look_for_keys": False,
            "compress": resolved.compression,
            "banner_timeout": CONNECT_SECONDS, "auth_timeout": CONNECT_SECONDS, "channel_timeout": CONNECT_SECONDS,
            "transport_factory": _transports(address, resolved, known.kinds, on_answer),
        },
    )  # fmt: skip
    connection.client.set_missing_host_key_policy(_HostKeyCheck(known, resolved))
    try:
        connection.open()
    except Exception as error:  # paramiko raises many kinds; each becomes a sentence
        connection.close()
        raise _in_words(address, resolved, error) from error
    transport = connection.client.get_transport()
    transport.set_keepalive(KEEPALIVE_SECONDS)
    if isinstance(transport.sock, socket.socket):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _transports(
    address: Address, resolved: Resolved, kinds: frozenset[str], on_answer: Callable[[], None]
) -> Callable[..., paramiko.Transport]:
    """Return a factory of paramiko transports that never prompt, that use only algorithms that the user's configuration
    allows, and that first request a host key of a known kind, as ssh does.
    """

    def make(sock: Any, **options: Any) -> paramiko.Transport:
        on_answer()
        transport = paramiko.Transport(sock, **options)
        transport.auth_interactive_dumb = _refuse_to_ask
        wanted = transport.get_security_options()
        for name, allowed in resolved.algorithms.items():
            if name == "pubkeys":
                others = [each for each in transport.preferred_pubkeys if each not in allowed]
                transport.disabled_algorithms = {"pubkeys": others}
                continue
            if not (common := [each for each in getattr(wanted, name) if each in allowed]):
                raise _without_common(address, f"your ssh configuration allows none of orch's own {name}")
            setattr(wanted, name, common)
        wanted.key_types = sorted(wanted.key_types, key=lambda name: _kind_of(name) not in kinds)
        return transport

    return make


def _refuse_to_ask(*_: Any, **__: Any) -> list[str]:
    raise _AskedError("the host asks for more than a key")


def _without_common(address: Address, why: str) -> NeedsOpenSshError:
    return NeedsOpenSshError(f"{address.host}: can't be reached: {why}", "install OpenSSH's client", why=why)


def _kind_of(algorithm: str) -> str:
    """Return the kind of key for a signature algorithm."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def _scanned_as(kind: str) -> str:
    """Return the kind of key as `ssh-keyscan -t` spells it. With the command that orch shows, a person then adds the
    same key that orch has checked.
    """
    return next((name for name in ("ed25519", "ecdsa", "rsa") if name in kind), kind)


def _in_words(address: Address, resolved: Resolved, error: Exception) -> BackendError:
    where = f"{address.host} ({resolved.hostname}:{resolved.port}{through(resolved)})"
    if isinstance(error, NeedsOpenSshError):
        return error
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return _without_common(address, f"orch's own connection and this host have too little in common: {error}")
    if isinstance(error, _HostKeyError):
        problem, remedy = error.args
        return BackendError(f"{where}: {problem}", remedy)
    if isinstance(error, BackendError):
        return BackendError(f"{where}: {error.message}", error.hint)
    if address.key and not os.path.exists(os.path.expanduser(address.key)):
        return BackendError(
            f"{where}: the key {address.key} does not exist", "set `key` in the profile to a key file on this machine"
        )
    if isinstance(error, _AskedError):
        return refusal(address, resolved, ["keyboard-interactive"], is_second=True)
    if isinstance(error, paramiko.BadAuthenticationType):
        return refusal(address, resolved, error.allowed_types)
    if isinstance(error, paramiko.PasswordRequiredException):
        return LoginRefusedError(
            f"{where}: the key needs its passphrase", "load the key into ssh-agent: ssh-add", resolved=resolved
        )
    if isinstance(error, paramiko.AuthenticationException) or str(error) == _NO_KEY:
        return refusal(address, resolved, ["publickey"])
    if isinstance(error, socket.gaierror):
        return BackendError(f"{address.host}: no such host: {error.strerror}", "see HostName in ~/.ssh/config")
    words, hint = _why_unreachable(error, resolved.reach_seconds), f"try: {address.ssh_command}"
    refused = REFUSED in words
    if refused:
        hint = f"is sshd running there? {hint}"
    return BackendError(f"{where}: can't be reached: {words}", hint, transient=not refused)


def _why_unreachable(error: Exception, seconds: float) -> str:
    """Return the operating system's reason why the connection to the machine, or to its gateway, failed."""
    if isinstance(error, NoValidConnectionsError):  # one error for each address of the host
        return " or ".join(dict.fromkeys(each.strerror or str(each) for each in error.errors.values()))
    if isinstance(error, paramiko.ChannelException):
        return f"{error.text}, says the host to go through"
    if isinstance(error, TimeoutError):
        return f"{os.strerror(errno.ETIMEDOUT)} after {seconds:g} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, paramiko.SSHException) and str(error).startswith(_SILENT):
        return f"sshd there took the connection, and then did not answer within {CONNECT_SECONDS:g} s (frozen, or busy)"
    return str(error) or type(error).__name__


class Channel:
    """A command on a machine with its standard streams, over an open connection. If the connection is lost, the methods
    raise one of the exceptions in LOST.
    """

    def __init__(self, connection: Connection, argv: list[str]) -> None:
        self.channel = connection.client.get_transport().open_session(timeout=CONNECT_SECONDS)
        self.channel.exec_command(shlex.join(argv))
        self.stream = self.channel.makefile("rb", BUFFER)

    def settle(self) -> None:
        """Do nothing, because reads have no time limit."""

    def give_up(self) -> None:
        """End the command, which wakes the threads that wait to read from it."""
        self.channel.close()

    def send(self, data: bytes) -> None:
        """Send all of the data."""
        self.channel.sendall(data)

    def last_words(self) -> tuple[int, str]:
        """Return the exit code and the beginning of the standard error of the ended command."""
        said = self.channel.makefile_stderr("rb").read(4096).decode("utf-8", "replace").strip()
        return self.channel.recv_exit_status(), said

    def close(self) -> None:
        """Close the command's channel, and so its standard input. The connection to the machine stays open."""
        self.channel.close()
