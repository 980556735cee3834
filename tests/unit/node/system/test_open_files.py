"""The limit of open files of node 0, which every other node connects to."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from orchestrator.node.system import open_files
from orchestrator.node.system.open_files import OWN, allow_connections, restore_limit

LOW = 256
TOO_FEW = """
import resource
from orchestrator.node.system.open_files import allow_connections
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 1024))
try:
    allow_connections(2000, 4000)
except OSError as error:
    print(error, resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.fixture
def hard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The hard limit; the soft one is low."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LOW, before[1]))
    monkeypatch.setattr(open_files, "_at_start", (LOW, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_it_is_raised_as_far_as_connections_need_it_and_a_child_has_the_old_one(hard: int) -> None:
    allow_connections(2, 4)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (LOW, hard)
    allow_connections(100, 300)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300 + OWN, hard)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        restore_limit(child.pid)
        assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE) == (LOW, hard)


def test_a_hard_limit_that_is_too_low_is_a_sentence_that_says_what_to_raise() -> None:
    said = subprocess.run([sys.executable, "-c", TOO_FEW], capture_output=True, text=True, check=True).stdout
    assert "may have 1024 files open at once, and 2000 connections need 2192" in said
    assert "ulimit -Hn" in said
    assert "(64, 1024)" in said
