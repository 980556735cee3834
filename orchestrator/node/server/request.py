"""What a request to a machine's server is, and how one is refused."""

from __future__ import annotations

import os
from typing import Any, BinaryIO, Protocol, Union

Request = dict[str, Any]


class Sending(Protocol):
    """Bytes of an answer that go to the connection as they are read."""

    @property
    def count(self) -> int:
        """Return the number of bytes."""

    def send(self, sink: BinaryIO) -> None:
        """Write all of them. Raises OSError if the connection is gone."""

    def read(self) -> bytes:
        """Return all of them."""


Answer = tuple[dict[str, Any], Union[bytes, Sending]]


class RefusedError(Exception):
    """A request that can't be carried out; its text is a sentence without the host, which the asker knows.

    transient: the same may pass later.
    """

    def __init__(self, sentence: str, *, transient: bool = False) -> None:
        super().__init__(sentence)
        self.transient = transient


def at_user(path: str) -> str:
    """Return the path with `~` as this machine has it."""
    return os.path.expanduser(path)
