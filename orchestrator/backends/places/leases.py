"""Holds the places of one start, either on every machine before any agent is started, or on no machine.

A place is a GPU, or a slot on a machine whose ranks use no GPU.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.backends.places.needs import Need
from orchestrator.backends.places.waiting import Waiting
from orchestrator.backends.settings import AgentsSettings, Host, run_folder
from orchestrator.errors import BackendError, PlacesTakenError
from orchestrator.runs.store import RunDir
from orchestrator.transport.machine import Machines

LOOK_SECONDS: Final = 20.0  # how long a request waits on one host before the places on other hosts are checked
HINT: Final = (
    "orch nodes shows which runs hold the GPUs or slots; without --no-wait, the run waits; with `leases: false`, it "
    "uses any of them"
)


@contextlib.contextmanager
def leased(
    machines: Machines,
    run: RunDir,
    settings: AgentsSettings,
    hosts: Mapping[int, Host],
    start: int,
    needs: Mapping[int, Need],
    *,
    began: bool,
) -> Iterator[dict[int, list[str]]]:
    """Yield the places (GPUs or slots) that are held on each machine, as a dict from the number of the machine's first
    node.

    If the start fails, every place that no agent has taken over is released. Raises PlacesTakenError if the run was put
    into the queue. A run that is started again does not queue, because it had its turn before; it takes places as they
    become free.

    began: True if an earlier start was interrupted. The agents of that start may already hold their places.
    """
    # In the order of the hosts' names, so that two runs that need the same hosts can't block each other.
    order = sorted((node for node in hosts if needs[node].count), key=lambda node: (hosts[node].name, node))
    sessions = {node: _Host(machines, run, settings, node, hosts[node], start) for node in order}
    try:
        waiting = Waiting(machines, run, settings, {node: needs[node] for node in order})
        places = _take_in_turn(sessions, needs, waiting, began=began) if start == 0 else _take_all(sessions, needs)
        yield {node: places.get(node, []) for node in hosts}
    except BaseException:
        for each in sessions.values():
            each.release()
        raise


def _take_in_turn(
    hosts: Mapping[int, _Host], needs: Mapping[int, Need], waiting: Waiting, *, began: bool
) -> dict[int, list[str]]:
    """Take the GPUs or slots that the run needs on all its machines, if it is the run's turn and they are free.

    Otherwise, take none. Raises PlacesTakenError once the run is queued, or BackendError if the run was submitted with
    `no_wait`.
    """
    places: dict[int, list[str]] = {}
    why = "" if began else waiting.obstacle()
    for node in hosts if not why else ():
        taken, said = hosts[node].take(needs[node], 0.0)
        if taken is None:
            why = f"{hosts[node].host.name}: {said}"
            break
        places[node] = taken
    if not why:
        return places
    for node in places:
        hosts[node].release()
    if not waiting.run.record().waits:
        raise BackendError(why, HINT)
    waiting.join()
    raise PlacesTakenError(why, HINT)


def _take_all(hosts: Mapping[int, _Host], needs: Mapping[int, Need]) -> dict[int, list[str]]:
    """Take the places of all machines, one machine after the other, as they become free.

    A host holds its places as long as its connection is open. If a host loses its connection while another host is
    awaited, its places are released, and the places of all hosts are requested again.
    """
    places: dict[int, list[str]] = {}
    left = deque(hosts)
    while left:
        taken, _ = hosts[left[0]].take(needs[left[0]], LOOK_SECONDS)
        if taken is not None:
            places[left.popleft()] = taken
        elif any(hosts[each].held() != theirs for each, theirs in places.items()):
            for each in places:
                hosts[each].release()
            places, left = {}, deque(hosts)
    return places


@dataclass(frozen=True)
class _Host:
    """The places (GPUs or slots) that are held for one run on one host."""

    machines: Machines
    run: RunDir
    settings: AgentsSettings
    node: int
    host: Host
    start: int

    def take(self, need: Need, wait: float) -> tuple[list[str] | None, str]:
        """Return the places (GPUs or slots) that were taken within `wait` seconds. If that fails, return None and the
        reason why they are not free.
        """
        folder = run_folder(self.settings.workdir, self.run.run_id)
        where = {"run_dir": folder, "node": self.node, "start": self.start}
        reply = self._call("lease", count=need.count, among=need.among, slots=self.settings.slots, wait=wait, **where)
        return reply["places"], reply.get("why", "")

    def held(self) -> list[str]:
        """Return the places (GPUs or slots) that the machine's server holds for the run. A server that was restarted
        holds no places.
        """
        places: list[str] = self._call("still_held")["places"]
        return places

    def release(self) -> None:
        """Release the run's GPUs or slots on the host. An unreachable host releases them by itself."""
        with contextlib.suppress(BackendError):
            self._call("release")

    def _call(self, do: str, **values: Any) -> dict[str, Any]:
        session = self.machines.session(self.host.address, self.settings.workdir)
        answer: dict[str, Any] = session.call(do, run_id=self.run.run_id, **values)[0]
        return answer
