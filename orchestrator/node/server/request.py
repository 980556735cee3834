"""What a request to a machine's server is, and how one is refused."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Union

Request = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A part of a file, which goes from there to the connection without passing through this process."""

    descriptor: int
    offset: int
    count: int

    def read(self) -> bytes:
        """Return its bytes and close the file."""
        try:
            return os.pread(self.descriptor, self.count, self.offset)
        finally:
            os.close(self.descriptor)

    def send(self, target: int) -> None:
        """Send it and close the file; OSError where it is shorter by now."""
        offset, end = self.offset, self.offset + self.count
        try:
            while offset < end:
                sent = os.sendfile(target, self.descriptor, offset, end - offset)
                if sent == 0:
                    raise OSError("the file has become shorter")
                offset += sent
        finally:
            os.close(self.descriptor)


Answer = tuple[dict[str, Any], Union[bytes, Part]]


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
