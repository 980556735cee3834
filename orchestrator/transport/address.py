"""The address of a machine, in the forms that a profile allows."""

from __future__ import annotations

import shlex
from dataclasses import field
from typing import Final

from orchestrator.protocol.frozen import Value

NO_CONNECTION: Final = 255  # the exit code of ssh if the command did not run
SSH: Final = "ssh"  # the only command for starting programs on a machine that needs no scheduler
HERE: Final = "this machine"  # the name of the computer that this process runs on


class Address(Value):
    """A machine, and the commands that start programs on it. SSH's configuration decides the fields that are None."""

    host: str
    user: str | None = None
    port: int | None = None
    key: str | None = None
    jump: str | None = None
    by: tuple[str, ...] = ()  # the commands to try for starting a program on it, in order; () for ssh
    job: str = ""  # the scheduler's job that has the machine, as KIND:NUMBER; "" if the machine belongs to no job
    # The profile's interpreter and setup lines, with which orch's server runs if the machine's python3 is too old. They
    # make no other machine: profiles that differ only in them share a connection.
    python: str | None = field(default=None, compare=False)
    setup: tuple[str, ...] = field(default=(), compare=False)

    @property
    def is_by_ssh(self) -> bool:
        """Return True if programs on the machine are started only by ssh."""
        return not self.by

    @property
    def ssh_command(self) -> str:
        """Return the ssh command with which a person can log in to the machine as orch does."""
        if self.by and self.by[0] != SSH:
            from orchestrator.transport.in_job import by_hand

            return by_hand(self)
        words = ["ssh", *_options(None, self.port, self.key), *(("-J", self.jump) if self.jump else ())]
        return shlex.join([*words, f"{self.user}@{self.host}" if self.user else self.host])

    @property
    def ssh_options(self) -> list[str]:
        """Return ssh's options for the user, the port and the key."""
        return _options(self.user, self.port, self.key)


def _options(user: str | None, port: int | None, key: str | None) -> list[str]:
    return [word for name, value in (("-l", user), ("-p", port), ("-i", key)) if value for word in (name, str(value))]


def parse_address(text: str, jump: str | None = None) -> Address:
    """Return the address in `host`, `user@host` or `user@host:port`."""
    user, _, rest = text.rpartition("@")
    host, port = split_port(rest)
    return Address(host, user or None, int(port) if port else None, jump=jump)


def split_port(text: str) -> tuple[str, str | None]:
    """Return (host, port) of `host`, `host:port`, `fd00::2`, `[fd00::2]` or `[fd00::2]:port`. The port is None if the
    text has none.
    """
    if text.startswith("[") and ":" in text and "]" in text:
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":") if rest else None
    host, colon, port = text.partition(":")
    return (text, None) if ":" in port else (host, port if colon else None)


def gateway_of(jump: str) -> Address:
    """Return the address of the last gateway in `a,user@b:port`. It is reached through the gateways before it."""
    before, _, last = jump.rpartition(",")
    return parse_address(last, before or None)
