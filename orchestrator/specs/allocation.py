"""Reads `hosts: allocation` in a profile, which means the machines of the scheduler's job in which orch runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from orchestrator.protocol.allocation import Allocation, AllocationError, read_allocation
from orchestrator.protocol.reading import MOST_RECORD, read_regular
from orchestrator.protocol.schedulers import SCHEDULERS


def allocation_here() -> Allocation | None:
    """Return the allocation in which this process runs, or None outside of a job.

    Raises AllocationError if the allocation can't be read.
    """
    return read_allocation(os.environ, lambda path: read_regular(path, MOST_RECORD).decode())


def allocation_key() -> str:
    """Return a text that differs between allocations; "" outside of a job."""
    try:
        return repr(allocation_here() or "")
    except AllocationError as error:
        return str(error)


def with_allocation(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an ssh profile, with the machines of the allocation as its hosts.

    If `spares` is a number, that many machines at the end of the list become the spares. The returned `start_by` lists
    ssh, then the scheduler's own command. If the profile does not set the number of ranks of a node, it is the number
    of slots on the node that the scheduler reports for its job. Raises ValueError if there is no allocation, or if it
    is too small.
    """
    try:
        found = allocation_here()
    except AllocationError as error:
        raise ValueError(str(error)) from None
    if found is None:
        titles = ", ".join(facts.title for facts in SCHEDULERS.values())
        raise ValueError(f"hosts is 'allocation', but this shell does not run in a job of {titles}")
    takes_counts = profile.get("nproc_per_node", "auto") == "auto"
    hosts = tuple(
        {"host": host, **({"nproc_per_node": count} if takes_counts and count else {})}
        for host, count in zip(found.hosts, found.counts, strict=True)
    )
    starter = SCHEDULERS[found.kind].starter
    ways = ("ssh", *([starter.name] if found.job and starter else []))
    profile = {"start_by": ways, "job": f"{found.kind}:{found.job}" if found.job else None, **profile}
    spares = profile.get("spares", ())
    if type(spares) is not int:
        return {**profile, "hosts": hosts}
    if not 0 <= spares < len(hosts):
        raise ValueError(
            f"{found.title} gave {len(hosts)} machines, but spares is {spares}, so no machine is left for the run"
        )
    first = len(hosts) - spares
    return {**profile, "hosts": hosts[:first], "spares": hosts[first:]}
