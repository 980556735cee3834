"""Finds the beginning of a program's output behind the lines that a login prints, such as a banner."""

from __future__ import annotations

import secrets
from typing import Final

BANNER_LINES: Final = 200


class Boundary:
    """A random text with which the program's first line begins. `seen` has the earlier lines."""

    def __init__(self) -> None:
        self.text = secrets.token_hex(16)
        self.seen: list[str] = []

    def rest_of(self, line: bytes) -> bytes | None:
        """Return the rest of the program's first line, or None if this line comes before the program's output.

        Return b"" if the output has ended, or if too many lines come before the program's output.
        """
        if line.startswith(f"{self.text} ".encode()):
            return line[len(self.text) + 1 :]
        if not line or len(self.seen) == BANNER_LINES:
            return b""
        self.seen.append(line.decode("utf-8", "replace").strip())
        return None
