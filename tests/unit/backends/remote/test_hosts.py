"""One machine is asked by the thread that asks, several by one each."""

from __future__ import annotations

import threading

from orchestrator.backends.remote.hosts import on_all
from orchestrator.errors import BackendError


def test_one_machine_needs_no_thread() -> None:
    me = threading.get_ident()
    assert on_all(lambda number, machine: (number, machine, threading.get_ident()), {3: "n3"}) == (
        {3: (3, "n3", me)}, {},
    )  # fmt: skip
    assert on_all(lambda *_: None, {}) == ({}, {})
    done, _ = on_all(lambda *_: threading.get_ident(), {0: "n0", 1: "n1"})
    assert me not in done.values()


def test_what_is_wrong_with_one_is_told_as_of_several() -> None:
    error = BackendError("n1: no room")

    def fail(_: int, __: str) -> None:
        raise error

    assert on_all(fail, {1: "n1"}) == ({}, {1: error})
