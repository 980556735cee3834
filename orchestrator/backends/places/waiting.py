"""The wait of a run for places (GPUs or slots). While it waits, the run has a ticket (its entry in the queue) on each
of its hosts.

orchestrator.protocol.places.tickets defines the order of tickets, and which tickets are valid. The answers of the hosts
are recorded in the run's folder, so `orch status` contacts no machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from orchestrator.backends.hosts import on_each
from orchestrator.backends.places.needs import Need
from orchestrator.backends.settings import AgentsSettings, Host
from orchestrator.errors import BackendError
from orchestrator.protocol.places import tickets
from orchestrator.protocol.places.holders import why_reserved, why_taken
from orchestrator.protocol.places.tickets import HostQueue
from orchestrator.runs.dependencies import AWAITED_PLACES, awaited_places
from orchestrator.runs.shared_hosts import host_queue, queue_record
from orchestrator.runs.store import RunDir
from orchestrator.transport.machine import Machine, Machines, OnlyHere

LOOK_SECONDS: Final = 15.0  # a host that takes longer counts as out of reach, because a cancel waits for its answer
T = TypeVar("T")


@dataclass(frozen=True)
class Waiting:
    """One waiting run and its hosts. `needs` is a dict from each host's number to the places (GPUs or slots) that the
    run needs on the host.
    """

    machines: Machines
    run: RunDir
    settings: AgentsSettings
    needs: Mapping[int, Need]

    @staticmethod
    def recorded(pool: Machines | None, run: RunDir) -> Waiting | None:
        """Return the waiting run from the record in its folder; None if the run is not queued. Without a pool, the run
        waits for places on this machine.
        """
        place = awaited_places(run) or {}
        counts, among = place.get("counts"), place.get("among")
        if not isinstance(counts, dict) or not all(each.isdecimal() for each in counts):
            return None
        only = among if isinstance(among, dict) else {}
        known = {
            int(number): Need(count, tuple(map(str, only[number])) if isinstance(only.get(number), list) else None)
            for number, count in counts.items()
            if type(count) is int
        }
        return Waiting(pool or OnlyHere(), run, AgentsSettings.of(run.record().profile), known)

    @property
    def hosts(self) -> dict[int, Host]:
        """Return the hosts on which the run needs GPUs or slots."""
        return {number: host for number, host in enumerate(self.settings.hosts) if self.needs.get(number, Need()).count}

    def obstacle(self) -> str:
        """Return why it is not the run's turn, in a sentence about one host; "" if it is the run's turn.

        A host that has fewer GPUs or slots than the run needs is ignored here. It refuses the request later.
        """
        for number, answer in sorted(self._look().items()):
            queue, count = host_queue(answer, self.run.run_id), self.needs[number].count
            if queue.total < count or tickets.has_room(queue, self.run.run_id, count):
                continue
            reserved = why_reserved(answer["places"], queue.free, tickets.before(queue, self.run.run_id))
            said = why_taken(answer["places"], count) if queue.free < count else reserved
            return f"{self.hosts[number].name}: {said}"
        return ""

    def join(self) -> bool:
        """Put the run into the queue, or keep its position. Return True if its turn has come.

        Either all tickets of the run (its entries in the hosts' queues) are renewed, or none is. So a run with an
        unreachable host delays no other run. If a ticket is missing or is dated too early, all tickets are replaced.
        """
        if not (self.run.path / AWAITED_PLACES).exists():  # the wait is recorded before the first ticket is created
            self._record({"position": None, "before": [], "held_by": [], "why": "waits for a free place"})
        try:
            seen = self._look()
            mine = [each for queue in self._queues(seen).values() for each in tickets.own(queue, self.run.run_id)]
            is_whole = len(mine) == len(seen) and len({each.number for each in mine}) == 1
            if not is_whole or any(each.is_early for each in mine):
                self._draw(max(answer["now"] for answer in seen.values()))
                seen = self._look()
            elif max(abs(each.age) for each in mine) > tickets.RENEW_SECONDS:
                self.renew()
        except BackendError as error:
            said = "; ".join(error.message.splitlines())  # a line for each host
            why = f"its turn can't come, and its place in the queue is kept: {said}"
            self._record({**(awaited_places(self.run) or {}), "why": why})
            raise
        hosts = self.hosts
        self._record(queue_record(self.run.run_id, {hosts[number].name: seen[number] for number in sorted(seen)}))
        return self._may_start(seen)

    def renew(self) -> None:
        """Report to every host that the run is still waiting."""
        self._on_all(lambda _, session: self._ask(session, "renew_ticket"))

    def leave(self) -> None:
        """Remove the run's tickets (its entries in the hosts' queues). On an unreachable host, the ticket becomes
        invalid after a minute.
        """
        with contextlib.suppress(BackendError):
            self._on_all(lambda _, session: self._ask(session, "drop_ticket"))
            (self.run.path / AWAITED_PLACES).unlink(missing_ok=True)

    def _draw(self, number: int) -> None:
        """Create a ticket (an entry in a host's queue) with the same number on every host."""

        def one(node: int, machine: Machine) -> None:
            self._ask(machine, "take_ticket", count=self.needs[node].count, number=number)

        self._on_all(one)

    def _look(self) -> dict[int, Any]:
        """Return each host's report on its GPUs or slots and on its queue, reduced to the GPUs or slots that this run
        may use.
        """

        def one(number: int, machine: Machine) -> Any:
            answer = self._ask(machine, "look_at_queue", slots=self.settings.slots)
            among = self.needs[number].among
            if among is None:
                return answer
            return {**answer, "places": {name: held for name, held in answer["places"].items() if name in among}}

        return self._on_all(one)

    def _queues(self, seen: Mapping[int, Any]) -> dict[int, HostQueue]:
        return {number: host_queue(answer, self.run.run_id) for number, answer in seen.items()}

    def _may_start(self, seen: Mapping[int, Any]) -> bool:
        asked = [(queue, self.needs[number].count) for number, queue in self._queues(seen).items()]
        return tickets.may_start(asked, self.run.run_id)

    def _ask(self, machine: Machine, do: str, **values: Any) -> dict[str, Any]:
        answer: dict[str, Any] = machine.call(do, run_id=self.run.run_id, timeout=LOOK_SECONDS, **values)[0]
        return answer

    def _on_all(self, work: Callable[[int, Machine], T]) -> dict[int, T]:
        """Do the work on each host. Raises BackendError, which names the hosts on which the work failed."""

        def one(number: int, host: Host) -> T:
            return work(number, self.machines.session(host.address, self.settings.workdir))

        return on_each(one, self.hosts)

    def _record(self, record: Mapping[str, Any]) -> None:
        """Record the state of the wait if it has changed."""
        only = {str(number): list(need.among) for number, need in self.needs.items() if need.among is not None}
        counts = {str(number): need.count for number, need in self.needs.items()}
        kept = {**record, "counts": counts, **({"among": only} if only else {})}
        if awaited_places(self.run) != kept:
            self.run.write(AWAITED_PLACES, kept)
