"""Opens connections to machines, does work on several machines in parallel, and combines their errors into one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from orchestrator.errors import BackendError, OrchError
from orchestrator.protocol.hostlist import by_words, each_once

if TYPE_CHECKING:  # a run on this machine opens none
    from orchestrator.transport.pool import ConnectionPool

AT_ONCE: Final = 32
M = TypeVar("M")
T = TypeVar("T")


class MachinesError(BackendError):
    """The errors of several machines in one exception; `by_number` maps each machine's number to its error."""

    def __init__(self, message: str, hint: str, by_number: Mapping[int, BackendError]) -> None:
        super().__init__(message, hint, transient=all(error.transient for error in by_number.values()))
        self.by_number = by_number


def connections() -> ConnectionPool:
    """Return a connection pool. The node archive (node.pyz), which it sends to the machines, comes from the cache in
    the state folder. Refused logins are remembered in the state folder.
    """
    from orchestrator.runs.store import state_root
    from orchestrator.transport.logins import Logins
    from orchestrator.transport.pool import ConnectionPool

    def archive() -> bytes:
        from orchestrator.transport.node_archive import kept_archive

        return kept_archive(state_root())

    return ConnectionPool(archive, Logins(state_root() / "logins"))


def on_all(work: Callable[[int, M], T], machines: Mapping[int, M]) -> tuple[dict[int, T], dict[int, BackendError]]:
    """Do the work on every machine in parallel. Return the results and the errors, each as a dict from the machine's
    number.

    An unexpected exception counts as an error of the machine on which the work was done. If this machine causes an
    error, such as a full disk, that error is raised.
    """
    done: dict[int, T] = {}
    failed: dict[int, BackendError] = {}

    def one(number: int) -> None:
        try:
            done[number] = work(number, machines[number])
        except BackendError as error:
            failed[number] = error
        except (OrchError, OSError):  # an error of this machine, such as a full disk
            raise
        except Exception as error:  # noqa: BLE001 (an answer can cause any error; the other machines continue)
            host, kind = getattr(machines[number], "name", f"node {number}"), type(error).__name__
            failed[number] = BackendError(f"{host}: its answer led to an error: {kind}: {error!s:.300}")

    if all(
        each == machines[min(machines)] for each in machines.values()
    ):  # all entries are one machine, perhaps with several nodes
        for number in machines:
            one(number)
        return done, failed
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(machines)))) as pool:
        for future in [pool.submit(one, number) for number in machines]:
            future.result()
    return done, failed


def on_each(work: Callable[[int, M], T], machines: Mapping[int, M]) -> dict[int, T]:
    """Do the work on every machine in parallel. Raises MachinesError, which names the machines that failed."""
    done, failed = on_all(work, machines)
    if failed:
        raise all_of(failed)
    return done


def all_of(failed: Mapping[int, BackendError]) -> MachinesError:
    """Return one error for several machines. It has a line for each distinct problem, and each hint once."""
    errors = [failed[number] for number in sorted(failed)]
    hints = each_once((re.split(r"[ :]", error.message)[0], error.hint) for error in errors if error.hint)
    lines = by_words((host, words) for host, _, words in (error.message.partition(": ") for error in errors))
    return MachinesError("\n".join(lines), "\n".join(hints), failed)
