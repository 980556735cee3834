"""Which machines can't reach the others, asked before another start: its gang would find out after `limits.join`."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.backends.agents.start import leader_addresses
from orchestrator.backends.remote.hosts import on_all
from orchestrator.backends.settings import Host, SshSettings
from orchestrator.errors import BackendError
from orchestrator.protocol.gang import gang_ports
from orchestrator.specs.plan import port_range
from orchestrator.transport.machine import Machines

Ways = dict[tuple[int, int], str]  # (from, to) -> why it does not work


def cut_off(
    pool: Machines, settings: SshSettings, hosts: Mapping[int, Host], witnesses: Iterable[Host] = ()
) -> dict[int, BackendError]:
    """Return the machines without which all others reach each other, with the reason of each; mostly none.

    Where a way does not work, the `witnesses` (free spares) tell which of its two ends is cut off.
    """
    broken, all_hosts = broken_ways(pool, settings, hosts), hosts
    if broken and (others := dict(enumerate(witnesses, max(hosts) + 1))):
        all_hosts = {**hosts, **others}
        broken = broken_ways(pool, settings, all_hosts)
    words = {number: f"{_in_words(number, way, all_hosts)}: {broken[way]}" for number, way in blamed(broken).items()}
    return {
        number: BackendError(f"{hosts[number].name}: {problem}", transient=True)
        for number, problem in words.items()
        if number in hosts
    }


def blamed(broken: Iterable[tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Return as few machines as explain all broken ways, each with one way of its own. Pure.

    The one of most broken ways first; of two alike the later, for the first is node 0 where nothing speaks against it.
    """
    left, found = sorted(broken), dict[int, tuple[int, int]]()
    while left:
        counts = Counter(number for way in left for number in way)
        worst = max(counts, key=lambda number: (counts[number], number))
        of_it = [way for way in left if worst in way]
        found[worst] = next((way for way in of_it if way[0] == worst), of_it[0])
        left = [way for way in left if worst not in way]
    return found


def broken_ways(pool: Machines, settings: SshSettings, hosts: Mapping[int, Host]) -> Ways:
    """Try the connections that a gang needs, from each machine to the first and to the next; return those that fail.

    A connection counts as failed only if this machine reaches both of its ends.
    """
    numbers = sorted(hosts)
    if len(numbers) < 2:
        return {}
    ports = gang_ports(secrets.token_hex(), port_range(settings.ports))

    def listen(_: int, host: Host) -> tuple[tuple[str, ...], int]:
        session = pool.session(host.address, settings.workdir)
        hello = session.call("hello", workdir=settings.workdir, shared_parent=settings.shared_parent)[0]
        addrs = leader_addresses(host, hello)
        return addrs, session.call("listen", addrs=addrs, interface=settings.interface, ports=ports)[0]["port"]

    listening, _ = on_all(listen, hosts)

    after = dict(zip(numbers, [*numbers[1:], numbers[0]], strict=True))

    def probe(number: int, host: Host) -> dict[int, dict[str, Any]]:
        others = [each for each in {numbers[0], after[number]} - {number} if each in listening]
        session = pool.session(host.address, settings.workdir)
        return {each: session.call("probe", addrs=listening[each][0], port=listening[each][1])[0] for each in others}

    answers, _ = on_all(probe, hosts)
    return {
        (number, other): "; ".join(answer["problems"])
        for number, found in answers.items()
        for other, answer in found.items()
        if answer["addr"] is None
    }


def _in_words(number: int, way: tuple[int, int], hosts: Mapping[int, Host]) -> str:
    start, end = way
    return f"it can't reach {hosts[end].name}" if number == start else f"{hosts[start].name} can't reach it"
