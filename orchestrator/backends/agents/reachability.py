"""Finds, before a new start, the machines that can't connect to the others. The ranks would wait for these machines
forever.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.backends.agents.start import leader_addresses
from orchestrator.backends.hosts import on_all
from orchestrator.backends.settings import AgentsSettings, Host
from orchestrator.errors import BackendError
from orchestrator.protocol.gang import gang_ports
from orchestrator.specs.plan import port_range
from orchestrator.transport.machine import Machines

Broken = dict[tuple[int, int], str]  # (from, to) -> why no connection can be made


def cut_off(
    pool: Machines, settings: AgentsSettings, hosts: Mapping[int, Host], witnesses: Iterable[Host] = ()
) -> dict[int, BackendError]:
    """Return the machines to leave out so that all others reach each other, with the reason for each.

    If a connection fails, the `witnesses` (free spares) try to reach the machines at both of its ends. This shows which
    of the two machines is cut off.
    """
    broken, all_hosts = _broken(pool, settings, hosts), hosts
    if broken and (others := dict(enumerate(witnesses, max(hosts) + 1))):
        all_hosts = {**hosts, **others}
        broken = _broken(pool, settings, all_hosts)
    words = {number: f"{_in_words(number, pair, all_hosts)}: {broken[pair]}" for number, pair in blamed(broken).items()}
    return {
        number: BackendError(f"{hosts[number].name}: {problem}", transient=True)
        for number, problem in words.items()
        if number in hosts
    }


def _broken(pool: Machines, settings: AgentsSettings, hosts: Mapping[int, Host]) -> Broken:
    return try_connections(pool, settings, hosts).broken if len(hosts) > 1 else {}


def blamed(broken: Iterable[tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Return a small set of machines that explains all failed connections, as a dict from each machine to one of its
    failed connections.

    The machine with the most failed connections is blamed first. If several machines have equally many, the one with
    the highest number is blamed, because the lowest may be node 0.
    """
    left, found = sorted(broken), dict[int, tuple[int, int]]()
    while left:
        counts = Counter(number for pair in left for number in pair)
        worst = max(counts, key=lambda number: (counts[number], number))
        of_it = [pair for pair in left if worst in pair]
        found[worst] = next((pair for pair in of_it if pair[0] == worst), of_it[0])
        left = [pair for pair in left if worst not in pair]
    return found


@dataclass(frozen=True)
class Tried:
    """The answers of machines that tried to connect to one another."""

    ports: Mapping[int, int]
    answers: Mapping[tuple[int, int], Mapping[str, Any]]  # (from, to) -> addr, own, interface, or problems
    failed: Mapping[int, BackendError]  # machines that could not try, and the first machine if it could not listen

    @property
    def broken(self) -> Broken:
        """Return the pairs of machines whose connection failed, with the reason for each."""
        between = ((pair, answer) for pair, answer in self.answers.items() if pair[0] != pair[1])
        lost = {pair: answer for pair, answer in between if answer["addr"] is None}
        return {pair: "; ".join(answer["problems"]) for pair, answer in lost.items()}


def try_connections(pool: Machines, settings: AgentsSettings, hosts: Mapping[int, Host]) -> Tried:
    """Try the connections that the ranks need: from each machine to the first machine and to the next.

    The first machine also tries to reach itself. A machine that is unreachable from this machine has no answer.
    """
    if not hosts:
        return Tried({}, {}, {})
    numbers, ports = sorted(hosts), gang_ports(secrets.token_hex(), port_range(settings.ports))

    def listen(_: int, host: Host) -> tuple[tuple[str, ...], int]:
        session = pool.session(host.address, settings.workdir)
        hello = session.hello(settings.workdir, shared_parent=settings.shared_parent)
        addrs = leader_addresses(host, hello)
        return addrs, session.call("listen", addrs=addrs, interface=settings.interface, ports=ports)[0]["port"]

    listening, failed = on_all(listen, hosts)
    after = dict(zip(numbers, [*numbers[1:], *numbers[:1]], strict=True))

    def probe(number: int, host: Host) -> dict[int, dict[str, Any]]:
        others = {numbers[0], after[number]} & set(listening)
        session = pool.session(host.address, settings.workdir)
        return {each: session.call("probe", addrs=listening[each][0], port=listening[each][1])[0] for each in others}

    found, lost = on_all(probe, hosts)
    answers = {(number, other): each for number, others in found.items() for other, each in others.items()}
    silent = {number: error for number, error in failed.items() if number == numbers[0]}
    return Tried({number: port for number, (_, port) in listening.items()}, answers, {**lost, **silent})


def _in_words(number: int, pair: tuple[int, int], hosts: Mapping[int, Host]) -> str:
    start, end = pair
    return f"it can't reach {hosts[end].name}" if number == start else f"{hosts[start].name} can't reach it"
