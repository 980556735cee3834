"""One testbed a session, with all that the chosen tests need; whole again after each test, and gone in the end.

`@pytest.mark.cluster("slurm")`, `("docker")` and `(nodes=5)` say what a test needs beside three nodes with sshd.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.node.system.processes import Process, identify, is_alive
from tests.cluster.control import Control
from tests.testbed import images
from tests.testbed.cluster import down, up
from tests.testbed.layout import Cluster, standing, state_folder
from tests.testbed.machine import install, missing_packages, obstacle
from tests.took import print_all

HERE = Path(__file__).parent


@dataclass
class Session:
    """The testbed of these tests, brought up when a test asks for it; a developer's is used and left as it is."""

    wanted: Cluster

    def control(self) -> Control:
        there = standing()
        if there is not None and there.owner and there.owner != self.wanted.owner:
            if is_alive(Process(*there.owner)):
                pytest.fail(f"other tests use this machine's testbed (pid {there.owner[0]})", pytrace=False)
            down()  # of tests that were killed
            there = None
        there = there or up(self.wanted)
        if lacks := _lacking(there, self.wanted):
            remedy = "end it with `python -m tests.testbed down`"
            pytest.fail(f"the testbed that is up has {lacks}: {remedy}", pytrace=False)
        return Control(there)

    @property
    def is_guest(self) -> bool:
        """Does somebody else's testbed stand?"""
        there = standing()
        return there is not None and there.owner != self.wanted.owner

    def end(self) -> None:
        if not self.is_guest:
            down()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install Debian's packages before the first test's clock runs."""
    if obstacle() is None and missing_packages() and any(item.path.is_relative_to(HERE) for item in session.items):
        install()


@pytest.fixture(scope="session")
def _session(request: pytest.FixtureRequest) -> Iterator[Session]:
    if reason := obstacle():
        if os.environ.get("TESTBED", "0") != "0":  # it was asked for by its folder, so that none is a failure
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    needs = [mark for item in request.session.items for mark in item.iter_markers("cluster")]
    words = {word for mark in needs for word in mark.args}
    assert words <= {"slurm", "docker"}, f"no testbed has {words}"
    nodes = max([3, *(mark.kwargs.get("nodes", 0) for mark in needs)])
    this = identify(os.getpid())
    assert this is not None
    owner = (this.pid, this.started)
    folder = state_folder()  # of a name that no test process before had: one that was killed has left its files
    folder = folder.with_name(f"{folder.name}-{secrets.token_hex(3)}")
    session = Session(Cluster(folder, nodes, slurm="slurm" in words, docker="docker" in words, owner=owner))
    yield session
    session.end()


@pytest.fixture
def testbed(_session: Session, request: pytest.FixtureRequest) -> Iterator[Control]:
    """The testbed; after the test it is whole again, and the test fails where alice or bob left something running."""
    control = _session.control()
    yield control
    try:
        for state in ("/home/alice/.local/state/orch", "/shared/alice-orch"):
            print_all(control.file("ctl", f"{state}/runs"), request.node.nodeid)
    finally:
        left = control.tidy()
    assert not left, "; ".join(left)


@pytest.fixture
def image(testbed: Control) -> str:
    """The name of an image with python3 that every node's daemon has; torch comes in by `images.mounts()`."""
    images.load(testbed.cluster, images.base())
    return images.BASE


@pytest.fixture
def no_testbed(_session: Session) -> None:
    """No testbed stands; skipped where somebody else's does, which is not ours to end."""
    if _session.is_guest:
        pytest.skip("a developer's testbed is up, and stays")
    _session.end()


def _lacking(there: Cluster, wanted: Cluster) -> str:
    """What the wanted testbed has and the other one lacks; empty when nothing."""
    lacks = [name for name in ("slurm", "docker") if getattr(wanted, name) and not getattr(there, name)]
    if there.nodes < wanted.nodes:
        lacks.append(f"{wanted.nodes} nodes")
    return f"no {' and no '.join(lacks)}" if lacks else ""
