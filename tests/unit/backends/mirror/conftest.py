"""Closes the files that an interrupted hand-over leaves open in this process's server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator.node.server import writing


def server_ends() -> None:
    """Close the files of this process's server, as its end does."""
    for each in writing._transfers.values():
        each.arriving.leave()
    writing._transfers.clear()


@pytest.fixture(autouse=True)
def server() -> Iterator[None]:
    yield
    server_ends()
