"""Every node derives the same ports, without talking."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol.gang import gang_ports


@given(st.text(max_size=12), st.integers(1024, 65_000), st.integers(0, 500))
def test_gang_ports_are_distinct_in_range_and_the_same_everywhere(secret: str, low: int, width: int) -> None:
    high = min(low + width, 65_535)
    ports = gang_ports(secret, (low, high))
    assert len(set(ports)) == len(ports) == min(16, high - low + 1)
    assert all(low <= port <= high for port in ports)
    assert ports == gang_ports(secret, (low, high))


def test_gang_ports_stay_below_the_ephemeral_range_and_differ_between_secrets() -> None:
    assert all(15_000 <= port < 32_768 for port in gang_ports("r-1"))
    assert gang_ports("r-1") != gang_ports("r-2")
