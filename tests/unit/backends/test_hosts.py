"""One machine is asked by the thread that asks, several by one each."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from orchestrator.backends.hosts import MachinesError, on_all, on_each
from orchestrator.errors import BackendError, StoreError


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


def test_an_error_that_nobody_expected_names_its_machine_and_the_others_go_on() -> None:
    def work(number: int, _: object) -> str:
        if number:
            raise RecursionError("too deep")
        return "done"

    machines = {
        0: SimpleNamespace(name="n0"),
        1: SimpleNamespace(name="n1"),
        2: "n2",
    }
    done, failed = on_all(work, machines)
    assert done == {0: "done"}
    words = "its answer led to an error: RecursionError: too deep"
    assert {number: error.message for number, error in failed.items()} == {
        1: f"n1: {words}", 2: f"node 2: {words}",
    }  # fmt: skip


@pytest.mark.parametrize("error", [StoreError("the disk here is full"), OSError("the disk here is full")])
def test_an_error_of_this_machine_is_raised_as_it_is(error: Exception) -> None:
    def work(*_: object) -> None:
        raise error

    with pytest.raises(type(error), match="the disk here is full"):
        on_all(work, {1: "n1"})


def test_work_that_must_succeed_on_every_machine_names_those_where_it_failed() -> None:
    def work(number: int, _: object) -> int:
        if number:
            raise BackendError(f"n{number}: no", transient=True)
        return number

    assert on_each(work, {0: "n0"}) == {0: 0}
    with pytest.raises(MachinesError, match=r"n1: no\nn2: no") as raised:
        on_each(work, {0: "n0", 1: "n1", 2: "n2"})
    assert set(raised.value.by_number) == {1, 2}
