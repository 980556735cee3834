"""Decides which users of this machine may connect to a port, and reports other users whose programs try to connect."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final

from orchestrator.errors import UsageError
from orchestrator.node.system.private import user_name
from orchestrator.node.system.tcp_peers import can_tell_owners, is_open, owner_of_peer

MOST_NAMED: Final = 100  # one user may have 65,536 subordinate uids


def check_owners_are_told(option: str) -> None:
    """Raise UsageError if the kernel does not report which user a connection comes from. `option` is the command-line
    option that admits all users, for the error's hint.
    """
    if not can_tell_owners():
        raise UsageError(
            "this machine's kernel does not report which user opened a connection, so any user could connect",
            f"if you trust all users of this machine: {option}",
        )


class Guard:
    """Decides which connections are admitted: only those from this user's own programs, or those of any user.

    The connection of a tunnel (ssh -L) comes from the sshd process of the user who logged in, so it counts as a
    connection of that user.
    """

    def __init__(self, say: Callable[[str], None], *, any_user: bool = False) -> None:
        self.say, self.any_user = say, any_user
        self._named: set[int | None] = set()

    def admits(self, connection: socket.socket) -> bool:
        """Return True if the connection is admitted. Report each refused user once."""
        if self.any_user:
            return True
        owner = owner_of_peer(connection)
        if owner == os.geteuid():
            return True
        if owner is not None or is_open(connection):  # a connection that its program has closed has no owner
            self.name(owner, "refused a connection of")
        return False

    def name(self, owner: int | None, said: str) -> None:
        """Report the message `said` about a user, unless a message about the user was reported before."""
        if owner not in self._named and len(self._named) < MOST_NAMED:
            self._named.add(owner)
            self.say(f"{said} {words_of(owner)}")


def words_of(uid: int | None) -> str:
    """Return a phrase with a user's name and id, for a message."""
    if uid is None:
        return "a user whom the kernel does not tell"
    name = user_name(uid)
    return f"uid {uid}" if name is None else f"user {name} (uid {uid})"
