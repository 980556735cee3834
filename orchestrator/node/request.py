"""What a request to a machine's server is, and how one is refused."""

from __future__ import annotations

import os
from typing import Any

Request = dict[str, Any]
Answer = tuple[dict[str, Any], bytes]


class RefusedError(Exception):
    """A request that can't be carried out; its text is a sentence without the host, which the asker knows."""


def at_user(path: str) -> str:
    """The path with `~` as this machine has it."""
    return os.path.expanduser(path)
