"""A word at the terminal while machines do not answer."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Final

from orchestrator.cli.group import say

PATIENCE: Final = 1.0


class Elsewhere:
    """Whom another process awaits, as it said last."""

    def __init__(self) -> None:
        self.awaited: frozenset[str] = frozenset()

    def hear(self, names: Iterable[str]) -> None:
        """Take over whom it awaits now."""
        self.awaited = frozenset(names)


@contextlib.contextmanager
def naming_who_is_awaited(kind: str) -> Iterator[Elsewhere]:
    """While it lasts, say at the terminal which machines of a kind of backend have not answered for a second.

    By this process, and by the one that the value yielded hears of.
    """
    elsewhere = Elsewhere()
    if not sys.stderr.isatty():
        yield elsewhere
        return
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(kind, elsewhere, over), daemon=True)
    thread.start()
    try:
        yield elsewhere
    finally:
        over.set()
        thread.join()


def _watch(kind: str, elsewhere: Elsewhere, over: threading.Event) -> None:
    """Name those who have been awaited for two looks in a row, each once."""
    from orchestrator.backends import backend
    from orchestrator.protocol.hostlist import in_words

    before, named = frozenset[str](), set[str]()
    while not over.wait(PATIENCE):
        awaited = elsewhere.awaited.union(backend(kind).awaited())
        if slow := (awaited & before) - named:
            named |= slow
            say(f"waiting for an answer from {in_words(sorted(slow))}")
        before = awaited
