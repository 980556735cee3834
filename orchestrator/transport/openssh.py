"""The system's own `ssh`: resolves addresses, and opens fast channels for large transfers.

`ssh` is several times as fast as paramiko. It gets the same configuration, user, port, key, gateways and known_hosts as
orch's sessions over paramiko. It never prompts, and refuses an unknown host key.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.errors import BackendError
from orchestrator.transport.address import NO_CONNECTION, Address, gateway_of
from orchestrator.transport.carrier import Carrier

REACH_SECONDS: Final = 5.0  # for a machine to accept a connection, unless the user's ConnectTimeout differs
CONNECT_SECONDS: Final = 15.0  # for what follows: greeting, keys, a command
KEEPALIVE_SECONDS: Final = 5
FAST_CIPHER: Final = "aes128-gcm@openssh.com"
FINAL: Final = ("verification failed", "Permission denied", "Connection refused", "Could not resolve")
OPTIONS: Final = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "ConnectTimeout": f"{CONNECT_SECONDS:.0f}",
    "ServerAliveInterval": str(KEEPALIVE_SECONDS),
    "ControlPath": "none",  # a separate connection: a shared one has the cipher of the process that opened it
    "RemoteCommand": "none",
    "PermitLocalCommand": "no",
    "ClearAllForwardings": "yes",
    "LogLevel": "ERROR",
}


@dataclass(frozen=True)
class Resolved:
    """The settings for an address, as OpenSSH's configuration resolves them."""

    hostname: str
    user: str | None = None
    port: int = 22
    keys: tuple[str, ...] = ()
    known_hosts: tuple[str, ...] = ()
    host_key_alias: str | None = None
    revoked_host_keys: str | None = None  # a file
    known_hosts_command: str | None = None
    jump: str | None = None
    agent: bool = True
    ciphers: tuple[str, ...] = ()
    reach_seconds: float = REACH_SECONDS


def resolve(address: Address) -> Resolved:
    """Return the settings for an address from `ssh -G`, or defaults if this machine has no ssh. If a scheduler's
    command starts programs on the machine, return only the host.
    """
    if not address.is_by_ssh:
        return Resolved(address.host)
    if address.host.startswith("-"):
        raise BackendError(f"'{address.host}' is not a host name")
    known = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
    if shutil.which("ssh") is None:
        keys = [f"~/.ssh/id_{kind}" for kind in ("ed25519", "ecdsa", "rsa")]
        found: dict[str, list[str]] = {"hostname": [address.host], "identityfile": keys}
    else:
        argv = ["ssh", "-G", *address.ssh_options, "--", address.host]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise BackendError(f"{address.host}: ssh can't read its configuration: {done.stderr.strip()}")
        found = {}
        for line in done.stdout.splitlines():
            name, _, value = line.partition(" ")
            found.setdefault(name, []).append(value)
    first = {name: values[0] for name, values in found.items()}
    files = [*first.get("userknownhostsfile", known[0]).split(), *first.get("globalknownhostsfile", known[1]).split()]
    jump = address.jump or first.get("proxyjump")
    keys = [address.key] if address.key else found.get("identityfile", [])
    return Resolved(
        hostname=first.get("hostname", address.host),
        user=first.get("user", address.user),
        port=int(first.get("port", address.port or 22)),
        keys=tuple(path for key in keys if os.path.exists(path := os.path.expanduser(key))),
        known_hosts=tuple(path for file in files if os.path.exists(path := os.path.expanduser(file))),
        host_key_alias=first.get("hostkeyalias"),
        revoked_host_keys=os.path.expanduser(first["revokedhostkeys"]) if "revokedhostkeys" in first else None,
        known_hosts_command=_unless_none(first.get("knownhostscommand")),
        jump=_unless_none(jump),
        agent=first.get("identityagent") != "none" and first.get("identitiesonly") != "yes",
        ciphers=tuple(filter(None, first.get("ciphers", "").split(","))),
        reach_seconds=float(seconds) if (seconds := first.get("connecttimeout", "none")).isdecimal() else REACH_SECONDS,
    )


def _unless_none(value: str | None) -> str | None:
    return None if value == "none" else value


def ssh_argv(address: Address) -> list[str]:
    """Return the `ssh` command, without the host, that connects to the machine with the same settings as orch's
    sessions.

    If the user's configuration allows FAST_CIPHER, that cipher comes first. Raises BackendError if ssh can't read its
    configuration.
    """
    resolved = resolve(address)
    ciphers = sorted(resolved.ciphers, key=lambda name: name != FAST_CIPHER)
    argv = ["ssh", "-T", "-a", "-x", *(f"-o{name}={value}" for name, value in OPTIONS.items())]
    argv += [f"-oCiphers={','.join(ciphers)}"] if ciphers else []
    argv += address.ssh_options
    if resolved.jump:  # ssh's own -J would give the gateways none of these options
        through = [*ssh_argv(gateway_of(resolved.jump)), "-W", f"[{resolved.hostname}]:{resolved.port}"]
        host = gateway_of(resolved.jump).host
        argv.append("-oProxyCommand=" + shlex.join([*through, "--", host]).replace("%", "%%"))
    return argv


def over_ssh(address: Address, argv: Sequence[str], *, terminal: bool) -> list[str]:
    """Return the argv that runs a command on a machine by the user's own ssh. With `terminal`, the command gets this
    process's terminal.

    The user's whole ssh configuration applies, except that the host key must already be known. The command starts in
    the home folder of the machine.
    """
    return [*_own_ssh(address), "-t" if terminal else "-T", "--", address.host, shlex.join(argv)]


def _own_ssh(address: Address) -> list[str]:
    words = ["ssh", f"-oStrictHostKeyChecking={OPTIONS['StrictHostKeyChecking']}", *address.ssh_options]
    if address.jump:  # ssh's own -J would accept any host key of a gateway if the configuration says so
        gateway = gateway_of(address.jump)
        through = [each.replace("%", "%%") for each in _own_ssh(gateway)]
        words.append("-oProxyCommand=" + shlex.join([*through, "-W", "[%h]:%p", "--", gateway.host]))
    return words


class SshProcess(Carrier):
    """A command on a machine with its standard streams, over a connection of the system's `ssh`."""

    def __init__(self, address: Address, argv: list[str]) -> None:
        super().__init__(address, [*ssh_argv(address), "--", address.host, shlex.join(argv)])

    def last_words(self) -> tuple[int, str]:
        """Return (exit code, standard error) of the ended command. Raises BackendError if ssh did not connect."""
        code, said = self.end()
        if code == NO_CONNECTION:
            raise _in_words(self.address, said)
        return code, said

    def close(self) -> None:
        """Close the connection, so that the command on the machine reads the end of its input."""
        self.process.terminate()
        super().close()
        self.process.wait()


def _in_words(address: Address, said: str) -> BackendError:
    """Return ssh's error message about a failed connection, without the decoration around its warnings."""
    lines = [line.strip() for line in said.splitlines() if line.strip("@ \r")]
    why = " ".join(lines)[-600:] or "ssh does not say why"
    return BackendError(
        f"{address.host}: can't be reached by ssh: {why}", f"try: {address.ssh_command}",
        transient=not any(word in why for word in FINAL),
    )  # fmt: skip
