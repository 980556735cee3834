"""The system's own `ssh`: resolves addresses, carries sessions that need it, and large transfers.

`ssh` is several times as fast as paramiko. It gets the same configuration, user, port, key, gateways and known_hosts as
orch's sessions over paramiko. It never prompts, and refuses an unknown host key. It uses a connection that the user has
opened (ControlMaster), if there is one.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orchestrator.errors import BackendError
from orchestrator.transport.address import NO_CONNECTION, Address, gateway_of
from orchestrator.transport.boundary import START_SECONDS
from orchestrator.transport.carrier import Carrier
from orchestrator.transport.ssh_options import KeyKind, kind_of, why_program

REACH_SECONDS: Final = 5.0  # for a machine to accept a connection, unless the user's ConnectTimeout differs
CONNECT_SECONDS: Final = 15.0  # for what follows: greeting, keys, a command
KEEPALIVE_SECONDS: Final = 5
FAST_CIPHER: Final = "aes128-gcm@openssh.com"
MASTER_SECONDS: Final = 5.0  # for the process of an open connection to answer
FINAL: Final = ("verification failed", "Permission denied", "Connection refused", "Could not resolve")
# For commands of the user, such as `orch shell`, and for orch's own sessions.
BY_HAND: Final = {
    "BatchMode": "yes",
    "StrictHostKeyChecking": "yes",
    "UpdateHostKeys": "no",
    "NoHostAuthenticationForLocalhost": "no",
}
OPTIONS: Final = {
    **BY_HAND,
    "RequestTTY": "no",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ServerAliveInterval": str(KEEPALIVE_SECONDS),
    "ControlMaster": "no",
    "Tunnel": "no",
    "RemoteCommand": "none",
    "PermitLocalCommand": "no",
    "ClearAllForwardings": "yes",
    "LogLevel": "ERROR",
}
# A user's ProxyCommand may be another ssh. Without a terminal, that ssh would open a window to ask for a password.
NO_WINDOWS: Final = {"SSH_ASKPASS_REQUIRE": "never"}
_ASKING: Final = frozenset({"keyboard-interactive", "password"})
_DENIED: Final = re.compile(r"(?:\S*@(\S+): )?Permission denied \(([^)]*)\)")
_LINES: Final = """keep that connection open by these lines in ~/.ssh/config:
  Host {}
    ControlMaster auto
    ControlPath ~/.ssh/cm-%C
    ControlPersist 8h"""


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
    is_key_in_dns: bool = False  # VerifyHostKeyDNS
    jump: str | None = None
    agent: bool = True
    agent_socket: str | None = None  # None: SSH_AUTH_SOCK
    other_keys: Mapping[str, KeyKind] = field(default_factory=dict)  # files of IdentityFile that have no private key
    algorithms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # those that are allowed, by option
    rsa_bits: int = 0  # RequiredRSASize
    compression: bool = False
    reach_seconds: float = REACH_SECONDS
    needs_program: str = ""  # the options that only the user's ssh program honours
    control_path: str | None = None  # the socket of a connection that the user may have opened
    opens_master: bool = False  # True if `ssh HOST` opens a connection that other programs can use
    configuration: str = ""  # a hash of all options


def resolve(address: Address) -> Resolved:
    """Return the settings for an address from `ssh -G`, or defaults if this machine has no ssh. If a scheduler's
    command starts programs on the machine, return only the host.
    """
    if not address.is_by_ssh:
        return Resolved(address.host)
    if address.host.startswith("-"):
        raise BackendError(f"'{address.host}' is not a host name")
    text = ""  # without ssh
    if shutil.which("ssh") is None:
        keys = [f"~/.ssh/id_{kind}" for kind in ("ed25519", "ecdsa", "rsa")]
        found: dict[str, list[str]] = {"hostname": [address.host], "identityfile": keys}
    else:
        jump = ["-J", address.jump] if address.jump else []
        argv = ["ssh", "-G", *address.ssh_options, *jump, "--", address.host]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise BackendError(f"{address.host}: ssh can't read its configuration: {done.stderr.strip()}")
        found, text = {}, done.stdout
        for line in text.splitlines():
            name, _, value = line.partition(" ")
            found.setdefault(name.lower(), []).append(value)
    return _resolved(address, found, text)


def _resolved(address: Address, found: dict[str, list[str]], text: str) -> Resolved:
    known = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
    first = {name: values[0] for name, values in found.items()}
    files = [*first.get("userknownhostsfile", known[0]).split(), *first.get("globalknownhostsfile", known[1]).split()]
    named = [address.key] if address.key else found.get("identityfile", [])
    paths = [path for key in named if os.path.exists(path := os.path.expanduser(key))]
    kinds = {path: kind_of(path) for path in paths}
    agent = first.get("identityagent", "SSH_AUTH_SOCK")
    control_path = _unless_none(first.get("controlpath"))
    allowed = {
        "ciphers": first.get("ciphers"), "digests": first.get("macs"), "kex": first.get("kexalgorithms"),
        "key_types": first.get("hostkeyalgorithms"),
        "pubkeys": first.get("pubkeyacceptedalgorithms", first.get("pubkeyacceptedkeytypes")),
    }  # fmt: skip
    return Resolved(
        hostname=first.get("hostname", address.host),
        user=first.get("user", address.user),
        port=int(first.get("port", address.port or 22)),
        keys=tuple(path for path in paths if kinds[path] in (KeyKind.PLAIN, KeyKind.ENCRYPTED)),
        other_keys={path: kind for path, kind in kinds.items() if kind not in (KeyKind.PLAIN, KeyKind.ENCRYPTED)},
        known_hosts=tuple(path for file in files if os.path.exists(path := os.path.expanduser(file))),
        host_key_alias=first.get("hostkeyalias"),
        revoked_host_keys=os.path.expanduser(first["revokedhostkeys"]) if "revokedhostkeys" in first else None,
        known_hosts_command=_unless_none(first.get("knownhostscommand")),
        is_key_in_dns=first.get("verifyhostkeydns") in ("yes", "true"),
        jump=_unless_none(address.jump or first.get("proxyjump")),
        agent=agent != "none" and first.get("identitiesonly") != "yes",
        agent_socket=os.path.expanduser(agent) if agent not in ("none", "SSH_AUTH_SOCK") else None,
        algorithms={name: tuple(names.split(",")) for name, names in allowed.items() if names},
        rsa_bits=int(first.get("requiredrsasize", 0)),
        compression=first.get("compression") == "yes",
        reach_seconds=float(seconds) if (seconds := first.get("connecttimeout", "none")).isdecimal() else REACH_SECONDS,
        needs_program=why_program(found, kinds) if text else "",
        control_path=control_path,
        opens_master=bool(control_path) and first.get("controlmaster") in ("auto", "yes", "true", "ask", "autoask"),
        configuration=hashlib.sha256(f"{address.ssh_command}\n{text}".encode()).hexdigest(),
    )


def _unless_none(value: str | None) -> str | None:
    return None if value == "none" else value


def has_master(address: Address, resolved: Resolved) -> bool:
    """Return True if the user has opened a connection to the machine that other programs can use (ControlMaster).

    Raises BackendError if its socket belongs to another user, or if its process does not answer.
    """
    path = resolved.control_path
    if path is None:
        return False
    try:
        infos = os.lstat(path), os.stat(path)
    except OSError:
        return False
    if any(info.st_uid != os.getuid() for info in infos):
        raise BackendError(
            f"{address.host}: {path}, its ControlPath in your ssh configuration, belongs to another user, who could "
            "read everything that is sent there",
            "set ControlPath to a path in a folder of your own, such as ~/.ssh/cm-%C",
        )
    if not stat.S_ISSOCK(infos[1].st_mode):
        return False
    argv = ["ssh", "-O", "check", _option("ControlPath", path), "--", address.host]
    try:
        done = subprocess.run(
            argv, capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=MASTER_SECONDS
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise _silent_master(address) from error
    return done.returncode == 0


def _silent_master(address: Address) -> BackendError:
    again = address.ssh_command
    return BackendError(
        f"{address.host}: the open connection to it (ControlMaster) does not answer; open it again with: {again}",
        f"end the old connection first: {again.replace('ssh ', 'ssh -O exit ', 1)}",
        transient=True,
    )


def _option(name: str, value: str) -> str:
    return f"-o{name}={value.replace('%', '%%')}"


Hops = Sequence[tuple[Address, Resolved]]


def hops_to(address: Address) -> Hops:
    """Return the machine and its gateways, the machine first, with the settings of each."""
    hops = [(address, resolve(address))]
    while jump := hops[-1][1].jump:
        gateway = gateway_of(jump)
        hops.append((gateway, resolve(gateway)))
    return hops


def ssh_argv(address: Address, *, shares: bool = True) -> list[str]:
    """Return the `ssh` command, without the host, that connects to the machine with the same settings as orch's
    sessions.

    With `shares`, the command uses an open connection of the user. If that connection ends before it is used, the
    command fails and makes no connection of its own, because only the user could log in. For a separate connection,
    FAST_CIPHER comes first if the user's configuration allows that cipher. Raises BackendError if ssh can't read its
    configuration.
    """
    return _argv(hops_to(address), shares=shares)


def _argv(hops: Hops, *, shares: bool, is_by_hand: bool = False) -> list[str]:
    (address, resolved), *gateways = hops
    path = resolved.control_path if shares and has_master(address, resolved) else None
    argv = ["ssh", *(f"-o{name}={value}" for name, value in (BY_HAND if is_by_hand else OPTIONS).items())]
    if path is not None:
        return [*argv, _option("ControlPath", path), "-oProxyCommand=false", *address.ssh_options]
    if not is_by_hand:
        seconds = CONNECT_SECONDS if resolved.reach_seconds == REACH_SECONDS else resolved.reach_seconds
        ciphers = sorted(resolved.algorithms.get("ciphers", ()), key=lambda name: name != FAST_CIPHER)
        argv += [f"-oConnectTimeout={seconds:.0f}", "-oControlPath=none"]
        argv += [f"-oCiphers={','.join(ciphers)}"] if ciphers else []
    argv += address.ssh_options
    if gateways:  # ssh's own -J would give the gateways none of these options, and could accept any host key there
        through = [*_argv(gateways, shares=shares), "-W", f"[{resolved.hostname}]:{resolved.port}"]
        argv.append(_option("ProxyCommand", shlex.join([*through, "--", gateways[0][0].host])))
    return argv


def over_ssh(hops: Hops, argv: Sequence[str], *, terminal: bool, shares: bool) -> list[str]:
    """Return the argv that runs a command on a machine by the user's own ssh. With `terminal`, the command gets this
    process's terminal. `shares` has the meaning that it has for `ssh_argv`.

    The user's whole ssh configuration applies, except that the host key must already be known, and that ssh does not
    prompt. The command starts in the home folder of the machine.
    """
    ssh = _argv(hops, shares=shares, is_by_hand=True)
    return [*ssh, "-t" if terminal else "-T", "--", hops[0][0].host, shlex.join(argv)]


class LoginRefusedError(BackendError):
    """Raised if a machine has refused the login. Without a change of the keys, of the configuration or of the machine,
    another try would fail too, and some machines lock out a user after too many failed logins.

    `resolved` has the settings of the machine or gateway that has refused.
    """

    def __init__(self, message: str, hint: str = "", *, resolved: Resolved, transient: bool = False) -> None:
        super().__init__(message, hint, transient=transient)
        self.resolved = resolved


def refusal(
    address: Address, resolved: Resolved, methods: Collection[str], *, is_second: bool = False
) -> LoginRefusedError:
    """Return the error for a login that the machine has refused.

    methods: the ways to log in that the machine still accepts. is_second: True if it is known that the machine has
    accepted the key, and asks for more.
    """
    by_hand = address.ssh_command
    if _ASKING & set(methods) and (is_second or "publickey" not in methods):
        what = "a password" if "password" in methods else "a password or a second factor"
        what = "a second factor" if is_second else what
        hint = "" if resolved.opens_master else _LINES.format(address.host)
        return LoginRefusedError(
            f"{address.host}: the login asks for {what}, and orch never prompts; open a connection with: {by_hand}",
            hint,
            resolved=resolved,
            transient=True,
        )
    others = "".join(f"; IdentityFile {path} is {kind}" for path, kind in resolved.other_keys.items())
    return LoginRefusedError(
        f"{address.host} ({resolved.hostname}:{resolved.port}{through(resolved)}): Permission denied "
        f"({','.join(methods) or 'publickey'}) for user {resolved.user or 'me'}; keys tried: "
        f"{', '.join(resolved.keys) or 'none found'}{others}",
        f"try: {by_hand} -v; set `user` and `key` in the profile, or load the key: ssh-add",
        resolved=resolved,
    )


def through(resolved: Resolved) -> str:
    """Return ` through GATEWAYS` for a machine behind gateways."""
    return f" through {resolved.jump}" if resolved.jump else ""


class SshProcess(Carrier):
    """A command on a machine with its standard streams, over a connection of the system's `ssh`."""

    def __init__(self, address: Address, argv: list[str], *, shares: bool = True, seconds: float | None = None) -> None:
        self.hops = hops_to(address)
        command = [*_argv(self.hops, shares=shares), "--", address.host, shlex.join(argv)]
        super().__init__(address, command, seconds, NO_WINDOWS)

    def last_words(self) -> tuple[int, str]:
        """Return (exit code, standard error) of the ended command. Raises BackendError if ssh did not connect."""
        code, said = self.end()
        if code < 0:
            raise _unanswered(self.hops)
        if code == NO_CONNECTION:
            raise in_words(self.hops, said)
        return code, said

    def close(self) -> None:
        """Close the connection, so that the command on the machine reads the end of its input."""
        self.process.terminate()
        super().close()
        self.process.wait()


def _unanswered(hops: Hops) -> BackendError:
    """Return the error for an ssh that was killed because it did not connect in time."""
    address, resolved = hops[0]
    if has_master(address, resolved):
        return _silent_master(address)
    return BackendError(
        f"{address.host}: can't be reached by ssh: no command began within {START_SECONDS:g} s: ssh does not log in,"
        f" or the login shell's start files there hang{_because(resolved)}",
        f"try: {address.ssh_command}", transient=True,
    )  # fmt: skip


def _because(resolved: Resolved) -> str:
    return f" (your ssh configuration: {resolved.needs_program})" if resolved.needs_program else ""


def in_words(hops: Hops, said: str) -> BackendError:
    """Return ssh's error message about a failed connection, without the decoration around its warnings."""
    address, resolved = hops[0]
    if denied := _DENIED.search(said):
        who, settings = next((hop for hop in hops if hop[1].hostname == denied[1]), hops[0])
        return refusal(who, settings, denied[2].split(","))
    if "Session open refused by peer" in said:
        return BackendError(
            f"{address.host}: its open connection (ControlMaster) has no room for another session",
            "close a terminal there, or ask its administrator to raise sshd's MaxSessions", transient=True,
        )  # fmt: skip
    lines = [line.strip() for line in said.splitlines() if line.strip("@ \r")]
    why = " ".join(lines)[-600:] or "ssh does not say why"
    return BackendError(
        f"{address.host}: can't be reached by ssh: {why}{_because(resolved)}", f"try: {address.ssh_command}",
        transient=not any(word in why for word in FINAL),
    )  # fmt: skip
