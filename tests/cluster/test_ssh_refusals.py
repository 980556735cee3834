"""Machines that can't take part are named before anything starts; odd machines that can take part do so.

Every other refusal is tested in tests/unit/backends/agents/test_refusals.py and tests/unit/transport.
"""

from __future__ import annotations

import re

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import STEPS, Lab

HELLO = "print('hello')\n"


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def refused(lab: Lab, *args: str, **fields: object) -> str:
    """What submit says; nothing has been started anywhere."""
    done = lab.orch("submit", lab.job("hello", HELLO), "--profile", lab.profile(**fields), *args)  # type: ignore[arg-type]
    assert done.code == 1, done.err
    for host in ("n1", "n2", "n3"):
        assert lab.agents(host) == []
        assert not list(lab.control.file(host, "/home/alice").glob(".orch/runs/*/nodes"))
    assert lab.orch("status", "hello").code == 102
    return done.err


def test_what_keeps_each_machine_away_is_told_and_nothing_is_started(lab: Lab) -> None:
    """Of each kind one: a host key, a machine that is off, and one without python3."""
    lab.control.change_key("n1")
    lab.write(".ssh/config", "Host *\n  StrictHostKeyChecking no\n")  # a changed key is refused all the same
    lab.control.crash("n2")
    # A login shell whose PATH has nothing in it stands for a machine without python3.
    lab.control.sshd("n3", "SetEnv PATH=/nonexistent")
    said = refused(lab)
    assert "host key verification failed: its key has changed" in said
    assert "ssh-keygen -R" in said
    assert re.search(r"n2 \(.*:22\): can't be reached: ", said)
    assert "n3: it has no python3" in said
    found = lab.orch("doctor", "--profile", lab.profile(), "--json")
    assert found.code == 1
    failed = {(check["host"], check["what"]) for check in found.json if check["level"] == "fail"}
    assert failed == {("n1", "ssh"), ("n2", "ssh"), ("n3", "python3")}


def test_a_banner_a_noisy_bashrc_and_two_sessions_are_no_hindrance(lab: Lab) -> None:
    banner = lab.control.file("n1", "/srv/banner")
    banner.write_text("Welcome!\nOnly for research.\n")
    lab.control.sshd("n1", "Banner /srv/banner", "MaxSessions 2")
    for host in ("n1", "n2"):
        lab.control.file(host, "/home/alice/.bashrc").write_text("echo this is my bashrc; echo and this >&2\n")
    run = lab.submit(lab.job("steps", STEPS, args=["10", "0"]), "--profile", lab.profile())
    assert lab.wait(run).code == 0
    assert "weights" in lab.log(run)
