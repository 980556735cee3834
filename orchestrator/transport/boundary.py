"""Finds the beginning of a program's output behind whatever a login prints before it, such as a banner."""

from __future__ import annotations

import secrets
from typing import Final

MOST_BEFORE: Final = 64 << 20  # bytes that start files may print
START_SECONDS: Final = 60.0  # for the login shell's start files, unless the user's ConnectTimeout is longer
SEEN: Final = 2000  # bytes of earlier output that an error may quote


class Boundary:
    """A random text with which the program's first line begins. The text may stand in the middle of a line, because
    start files may print without a final newline.

    `before` counts the bytes of earlier output, and `seen` has the end of that output.
    """

    def __init__(self) -> None:
        self.text = secrets.token_hex(16)
        self.before, self._last = 0, b""

    @property
    def seen(self) -> str:
        """Return the end of the output before the program's output, as words in one line."""
        return " ".join(self._last.decode("utf-8", "replace").split())

    def rest_of(self, piece: bytes) -> bytes | None:
        """Return the rest of the program's first line, or None if this line or part of a line comes before it.

        Return b"" if the output has ended, or if too much comes before the program's output.
        """
        self.before += len(piece)
        is_over = not piece or self.before > MOST_BEFORE
        before, found, rest = (self._last + piece).partition(f"{self.text} ".encode())
        if found and not rest.endswith(b"\n") and not is_over:
            self._last += piece  # the rest of the line follows
            return None
        self._last = before[-SEEN:]
        return rest if found or is_over else None
