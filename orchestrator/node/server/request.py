"""The types of a machine server's requests and answers, and the error by which the server refuses a request."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from orchestrator.node.server.sending import Parts

Request = dict[str, Any]


Answer = tuple[dict[str, Any], Union[bytes, "Parts"]]


class RefusedError(Exception):
    """A request can't be carried out. The text is a sentence without the host's name, because the requester knows the
    host.

    transient: whether the same request may succeed later.
    """

    def __init__(self, sentence: str, *, transient: bool = False) -> None:
        super().__init__(sentence)
        self.transient = transient


def at_user(path: str) -> str:
    """Return the path with `~` replaced by this machine's home folder."""
    return os.path.expanduser(path)
