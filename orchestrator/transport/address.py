"""How a machine is reached, as a profile says it."""

from __future__ import annotations

import shlex
from typing import Final

from orchestrator.protocol.frozen import Value

NO_CONNECTION: Final = 255  # the exit code of ssh if the command did not run
HERE: Final = "this machine"  # the name of the computer that this process runs on


class Address(Value):
    """A machine for ssh; what is None is left to the user's own SSH configuration."""

    host: str
    user: str | None = None
    port: int | None = None
    key: str | None = None
    jump: str | None = None

    @property
    def ssh_command(self) -> str:
        """Return the command by which a person logs in as orch does."""
        words = ["ssh", *(("-p", str(self.port)) if self.port else ()), *(("-i", self.key) if self.key else ())]
        words += ["-J", self.jump] if self.jump else []
        return shlex.join([*words, f"{self.user}@{self.host}" if self.user else self.host])


def parse_address(text: str, jump: str | None = None) -> Address:
    """Return the address in `host`, `user@host` or `user@host:port`."""
    user, _, rest = text.rpartition("@")
    host, port = split_port(rest)
    return Address(host, user or None, int(port) if port else None, jump=jump)


def split_port(text: str) -> tuple[str, str | None]:
    """Return (host, port or None) of `host`, `host:port`, `fd00::2`, `[fd00::2]` or `[fd00::2]:port`."""
    if text.startswith("[") and ":" in text and "]" in text:
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":") if rest else None
    host, colon, port = text.partition(":")
    return (text, None) if ":" in port else (host, port if colon else None)


def gateway_of(jump: str) -> Address:
    """Return the last machine of `a,user@b:port`, reached through those before it."""
    before, _, last = jump.rpartition(",")
    return parse_address(last, before or None)
