"""Hosts that only the user's own ssh program can reach: a second factor, a password, and usual lines of ~/.ssh/config."""

from __future__ import annotations

import json

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import LAPTOP, STEPS, Lab, settled, weights_after
from tests.testbed import sshd

MASTER = "Host n1\n  ControlMaster auto\n  ControlPath ~/.ssh/cm-%C\n  ControlPersist yes\n"


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def doctor(lab: Lab, host: str = "n1") -> tuple[str, str, str]:
    """(level, words, hint) of doctor's check of the connection."""
    checks = lab.orch("doctor", "--profile", lab.profile(hosts=[host]), "--json").json
    check = next(check for check in checks if check["what"] == "ssh")
    return check["level"], check["value"], check["hint"]


def test_a_second_factor_from_submit_to_pull(lab: Lab) -> None:
    lab.control.ask_for_more("n1", *sshd.SECOND_FACTOR)
    job = lab.job("steps", STEPS, args=["60", "0.2"])
    refused = lab.orch("submit", job, "--profile", lab.profile(hosts=["n1"]))
    assert refused.code == 1
    assert (
        "n1: the login asks for a second factor, and orch never prompts; open a connection with: ssh n1" in refused.err
    )
    assert "ControlMaster auto" in refused.err
    again = lab.orch("submit", job, "--profile", lab.profile(hosts=["n1"]))
    assert "orch does not repeat a login that was refused" in again.err
    assert len(lab.control.failed_logins("n1")) == 1

    lab.write(".ssh/config", MASTER)
    lab.control.open_by_hand(LAPTOP, "ssh", "n1")
    assert (
        doctor(lab)[1] == "connected by your ssh program: it uses the connection that you have opened (ControlMaster)"
    )
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1"]))
    lab.until(run, "checkpoint")
    lab.control.output(LAPTOP, "ssh", "-O", "exit", "n1")
    settled(lambda: "open a connection with: ssh n1" in json.dumps(lab.status(run)), "the command that opens it again")
    lab.control.open_by_hand(LAPTOP, "ssh", "n1")
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert weights_after(60) in lab.log(run)
    pulled = lab.orch("pull", run, "--to", "here")
    assert pulled.code == 0, pulled.err
    assert len(lab.control.failed_logins("n1")) <= 2
