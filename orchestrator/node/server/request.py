"""The types of requests to a machine's server and of its answers, and the error that refuses a request."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from orchestrator.node.server.sending import Parts

Request = dict[str, Any]


Answer = tuple[dict[str, Any], Union[bytes, "Parts"]]


class RefusedError(Exception):
    """A request that can't be carried out. Its text is a sentence without the host, which the asker knows.

    transient: the same request may succeed later.
    """

    def __init__(self, sentence: str, *, transient: bool = False) -> None:
        super().__init__(sentence)
        self.transient = transient


def at_user(path: str) -> str:
    """Return the path with `~` as this machine has it."""
    return os.path.expanduser(path)
