"""Prints the machines that have not answered yet, while a command waits for them."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Final

from orchestrator.cli.group import say

PATIENCE: Final = 1.0


class Elsewhere:
    """The machines for which another process waits, according to its last report."""

    def __init__(self) -> None:
        self.awaited: frozenset[str] = frozenset()

    def hear(self, names: Iterable[str]) -> None:
        """Store the machines that a new report names."""
        self.awaited = frozenset(names)


@contextlib.contextmanager
def naming_awaited_machines(kind: str) -> Iterator[Elsewhere]:
    """Within the block, print the machines that have not answered this process for a second.

    `kind` names the backend that connects to the machines. The yielded object also takes the names of machines for
    which another process waits (see `Elsewhere.hear`), and these are printed too.
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
    """Print each machine once if it has not answered at two consecutive checks."""
    from orchestrator.backends import backend_for
    from orchestrator.protocol.hostlist import in_words

    before, named = frozenset[str](), set[str]()
    while not over.wait(PATIENCE):
        pool = backend_for(kind).pool
        awaited = elsewhere.awaited.union(pool.opening if pool is not None else ())
        if slow := (awaited & before) - named:
            named |= slow
            say(f"waiting for an answer from {in_words(sorted(slow))}")
        before = awaited
