"""A testbed with all that the tests of a file need; whole again after each test, and gone in the end.

`@pytest.mark.cluster("slurm")`, `("sge")`, `("docker")` and `(nodes=5)` say what a test needs beside three nodes with
sshd.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
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
PARTS = ("slurm", "docker", "sge")


@dataclass
class Session:
    """The testbeds of this test process, one after another; a developer's own is used, and left as it is."""

    owner: tuple[int, int]  # this process: its pid and start time

    def control(self, needs: Needs) -> Control:
        """The testbed that has what the tests of a file need.

        A testbed is brought up with just that, and taken down for another one if a later file needs more.
        """
        there = standing()
        if there is not None and there.owner and there.owner != self.owner:
            if is_alive(Process(*there.owner)):
                pytest.fail(f"other tests use this machine's testbed (pid {there.owner[0]})", pytrace=False)
            down()  # of tests that were killed
            there = None
        if there is not None and (lacks := needs.lacking(there)):
            if self.is_guest:
                remedy = "end it with `python -m tests.testbed down`"
                pytest.fail(f"the testbed that is up has {lacks}: {remedy}", pytrace=False)
            needs = needs.and_what_has(there)
            down()
            there = None
        return Control(there or up(self._cluster(needs)))

    @property
    def is_guest(self) -> bool:
        """Does somebody else's testbed stand?"""
        there = standing()
        return there is not None and there.owner != self.owner

    def end(self) -> None:
        if not self.is_guest:
            down()

    def _cluster(self, needs: Needs) -> Cluster:
        folder = state_folder()  # of a name that no test process before had: one that was killed has left its files
        folder = folder.with_name(f"{folder.name}-{secrets.token_hex(3)}")
        return Cluster(folder, needs.nodes, slurm=needs.slurm, docker=needs.docker, sge=needs.sge, owner=self.owner)


@dataclass(frozen=True)
class Needs:
    """The parts of a testbed that tests ask for, beside three nodes with sshd."""

    nodes: int = 3
    slurm: bool = False
    docker: bool = False
    sge: bool = False

    @classmethod
    def of(cls, items: Iterable[pytest.Item]) -> Needs:
        """The needs of all these tests together."""
        marks = [mark for item in items for mark in item.iter_markers("cluster")]
        words = {word for mark in marks for word in mark.args}
        assert words <= set(PARTS), f"no testbed has {words}"
        nodes = max([3, *(mark.kwargs.get("nodes", 0) for mark in marks)])
        return cls(nodes, **{part: part in words for part in PARTS})

    def and_what_has(self, there: Cluster) -> Needs:
        """These needs and the parts of a testbed that stands."""
        parts = {part: getattr(self, part) or getattr(there, part) for part in PARTS}
        return Needs(max(self.nodes, there.nodes), **parts)

    def lacking(self, there: Cluster) -> str:
        """The parts that the testbed does not have; empty if it has them all."""
        lacks = [name for name in PARTS if getattr(self, name) and not getattr(there, name)]
        if there.nodes < self.nodes:
            lacks.append(f"{self.nodes} nodes")
        return f"no {' and no '.join(lacks)}" if lacks else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install Debian's packages before the first test's clock runs."""
    ours = [item for item in session.items if item.path.is_relative_to(HERE)]
    more = Needs.of(ours).sge
    if obstacle() is None and ours and missing_packages(more=more):
        install(more=more)


@pytest.fixture(scope="session")
def _session(request: pytest.FixtureRequest) -> Iterator[Session]:
    if reason := obstacle():
        if os.environ.get("TESTBED", "0") != "0":  # it was asked for by its folder, so that none is a failure
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    this = identify(os.getpid())
    assert this is not None
    session = Session((this.pid, this.started))
    yield session
    session.end()


@pytest.fixture(scope="module")
def _needs(request: pytest.FixtureRequest) -> Needs:
    """The needs of the tests of this file."""
    return Needs.of(item for item in request.session.items if item.path == request.path)


@pytest.fixture
def testbed(_session: Session, _needs: Needs, request: pytest.FixtureRequest) -> Iterator[Control]:
    """The testbed; after the test it is whole again, and the test fails where alice or bob left something running."""
    control = _session.control(_needs)
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
