"""How a machine is reached, as a profile says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Address:
    """A machine for ssh; what is None is left to the user's own SSH configuration."""

    host: str
    user: str | None = None
    port: int | None = None
    key: str | None = None
    jump: str | None = None


def parse_address(text: str, jump: str | None = None) -> Address:
    """Return the address in `host`, `user@host` or `user@host:port`."""
    user, _, rest = text.rpartition("@")
    host, _, port = rest.partition(":")
    return Address(host, user or None, int(port) if port else None, jump=jump)


def gateway_of(jump: str) -> Address:
    """Return the last machine of `a,user@b:port`, reached through those before it."""
    before, _, last = jump.rpartition(",")
    return parse_address(last, before or None)
