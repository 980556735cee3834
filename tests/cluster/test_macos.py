"""orch on a laptop that looks like a Mac (tests/macos): machines over SSH, and a Slurm cluster behind a login node."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import HOLD, LAPTOP, STEPS, Lab, weights_after
from tests.result import Result
from tests.testbed.layout import REPO

IMITATION = REPO / "tests" / "macos" / "imitation"
# Asks for the page without the key that a browser gets. `orch ui` writes the address to a file.
VISIT = """
import http.client, re, sys
host, port, path = re.search("http://([^/:]+):([0-9]+)(/[^'<> ]*)", open(sys.argv[1]).read().replace('"', "'")).groups()
page = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
page.request("GET", path, headers={"Host": f"{host}:{port}"})
print(page.getresponse().status)
"""


@dataclass(frozen=True)
class Mac(Lab):
    @property
    def runs(self) -> Path:
        return self.home / "Library/Application Support/orch/runs"

    def orch(self, *args: str, **options: Any) -> Result:
        program = (sys.executable, "-m", "orchestrator.cli", *args)
        path = f"{IMITATION}:{REPO}"
        done = self.control.run(LAPTOP, *program, user=self.user, PYTHONPATH=path, NO_COLOR="1", **options)
        assert "Traceback" not in done.err, done.err
        assert "an error in orch itself" not in done.err, done.err
        return replace(done, argv=args)


@pytest.fixture
def mac(testbed: Control) -> Mac:
    return Mac(testbed)


def _ended(mac: Mac, *args: str) -> str:
    """Run the command, which must end with 0, and return what it printed."""
    done = mac.orch(*args)
    assert done.code == 0, (args, done.out, done.err)
    return done.out


def test_the_commands_work_from_a_mac_and_runs_on_it_are_refused(mac: Mac) -> None:
    refused = mac.orch("submit", mac.job("steps", STEPS, args=["20", "0.02"]), "-p", "local")
    assert refused.code == 2
    assert "macOS, where orch starts no ranks" in refused.err
    assert "macOS" in mac.orch("doctor", "-p", "local").err
    _ended(mac, "init", "--host", "n[1-2]", "written")
    profile = mac.profile(hosts=["n1", "n2"])
    assert "all checks passed" in _ended(mac, "doctor", "-p", profile)
    _ended(mac, "plan", "steps/steps.yaml", "-p", profile)
    run = mac.submit("steps/steps.yaml", "-p", profile)
    assert mac.wait(run).code == 0
    assert mac.status(run)["state"] == "succeeded"
    for command in ("status", "why", "logs", "events", "checkpoints", "outputs"):
        _ended(mac, command, run)
    _ended(mac, "pull", run, "--to", "results")
    log = next((mac.home / "results").rglob("rank_0.log")).read_text()
    assert weights_after(20) in log
    _ended(mac, "ui", "--no-open", "--detach")
    visit = mac.control.python(LAPTOP, "-c", VISIT, "Library/Application Support/orch/ui/open.html")
    _ended(mac, "ui", "--stop")
    assert visit.out == "401\n", visit  # the server admits the connection, and asks for the key of the browser
    held = mac.submit(mac.job("hold", HOLD), "-p", profile)
    mac.until_said(held, "holding")
    _ended(mac, "cancel", held)
    assert mac.status(held)["state"] == "cancelled"
    mac.assert_nothing_left(held, ("n1", "n2"))
    for command in (("rm", "--yes", run), ("nodes", "-p", profile), ("queue", "-p", profile), ("gc",), ("usage",)):
        _ended(mac, *command)


@pytest.mark.cluster("slurm")
@pytest.mark.full("tests/cluster/test_macos.py::test_the_commands_work_from_a_mac_and_runs_on_it_are_refused")
def test_a_job_of_slurm_is_submitted_from_a_mac_through_a_login_node(mac: Mac) -> None:
    fields = {"kind": "slurm", "nodes": 2, "nproc_per_node": 1, "workdir": "/shared/alice", "python": sys.executable}
    mac.write("far.yaml", json.dumps({**fields, "login": "n3", "time": "10m"}))
    run = mac.submit(mac.job("steps", STEPS, args=["20", "0.02"]), "-p", "far.yaml")
    assert mac.wait(run).code == 0
    _ended(mac, "pull", run, "--to", "results")
    assert weights_after(20) in next((mac.home / "results").rglob("rank_0.log")).read_text()
