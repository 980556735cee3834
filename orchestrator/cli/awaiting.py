"""A word at the terminal while machines do not answer."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Final

from orchestrator.cli.group import say

PATIENCE: Final = 1.0


@contextlib.contextmanager
def naming_who_is_awaited(kind: str) -> Iterator[None]:
    """While it lasts, say at the terminal which machines of a kind of backend have not answered for a second."""
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(kind, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(kind: str, over: threading.Event) -> None:
    """Name those who have been awaited for two looks in a row, each once."""
    from orchestrator.backends import backend
    from orchestrator.protocol.hostlist import in_words

    before, named = set[str](), set[str]()
    while not over.wait(PATIENCE):
        awaited = set(backend(kind).awaited())
        if slow := (awaited & before) - named:
            named |= slow
            say(f"waiting for an answer of {in_words(sorted(slow))}")
        before = awaited
