"""The environment of a job on machines that have no way out: sent, installed once, checked, and removed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests import wheels
from tests.cluster.control import Control
from tests.cluster.lab import LAPTOP, Lab

HOSTS = ("n1", "n2", "n3")
SAYS = "import alpha, os, sys\nprint(os.environ['RANK'], alpha.VERSION, sys.prefix)\n"


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def job(lab: Lab, name: str, *files: Path, program: str = SAYS, **environment: str) -> str:
    """A job with these files in its requirements.txt; they lie in alice's home on the laptop."""
    text = wheels.requirements(*files).replace(str(lab.home), "/home/alice")
    wheels.job(lab.home / name, "requirements.txt", text, program, **environment)
    return f"{name}/{name}.yaml"


def made(lab: Lab, run: str) -> dict[str, bool]:
    """On which hosts the run's environment had to be made."""
    return {str(event["host"]): bool(event["made"]) for event in lab.events(run, "environment")}


def folder_of(lab: Lab, run: str, host: str) -> Path:
    (found,) = [event["folder"] for event in lab.events(run, "environment") if event["host"] == host]
    return lab.control.file(host, str(found))


def ran(lab: Lab, *args: str) -> str:
    run = lab.submit(*args)
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    return run


def test_the_environment_is_installed_where_it_is_missing_or_was_changed_and_nowhere_else(lab: Lab) -> None:
    folder = lab.home / "wheels"
    large, small = wheels.wheel(folder, "alpha", "1.5", size=9_000_000), wheels.wheel(folder, "beta")
    path = job(lab, "sent", large, small)
    run = ran(lab, path, "--profile", lab.profile("two", hosts=["n1", "n2"]))
    assert made(lab, run) == {"n1": True, "n2": True}
    (edited,) = folder_of(lab, run, "n2").glob("lib/*/site-packages/alpha/__init__.py")
    edited.write_text("VERSION = 'bad'\n")
    found = {
        (check["host"], check["level"], "alpha/__init__.py" in check["value"])
        for check in lab.orch("doctor", "--profile", "two.yaml", "--json").json
        if check["what"] == "environments"
    }
    assert found == {("n1", "ok", False), ("n2", "fail", True)}
    kept = lab.control.file("n2", f"/home/alice/.orch/cache/wheels/{wheels.sha256(large)}")
    kept.write_bytes(kept.read_bytes()[:1000])  # half a copy
    run = ran(lab, path, "--profile", lab.profile(hosts=list(HOSTS)))
    assert made(lab, run) == {"n1": False, "n2": True, "n3": True}
    for rank, host in enumerate(HOSTS):
        place = f"/{folder_of(lab, run, host).relative_to(lab.control.file(host, '/home').parent)}"
        lab.orch("logs", run, "--rank", str(rank))
        assert lab.log(run, rank) == f"{rank} 1.5 {place}\n"
    lab.assert_nothing_left(run)


@pytest.mark.full(
    "tests/cluster/test_environments.py::test_the_environment_is_installed_where_it_is_missing_or_was_changed_and_nowhere_else",
)
def test_on_a_folder_that_machines_share_it_is_made_once(lab: Lab) -> None:
    folder = "/shared/alice-environment"
    lab.control.output("n1", "mkdir", "-p", folder)
    profile = lab.profile(hosts=["n1", "n2"], shared=True, workdir=folder)
    run = ran(lab, job(lab, "one", wheels.wheel(lab.home / "wheels", "alpha")), "--profile", profile)
    assert made(lab, run) == {"n1": True, "n2": False}


def test_what_a_node_can_not_be_given_is_named_for_each_before_anything_starts(lab: Lab) -> None:
    windows = wheels.wheel(lab.home / "wheels", "alpha", tag=wheels.FOR_WINDOWS)
    done = lab.orch("submit", job(lab, "win", windows), "--profile", lab.profile(hosts=["n1", "n2"]))
    assert done.code == 1
    for host in ("n1", "n2"):
        assert f"{host}: requirements.txt does not fit the nodes' Python (Python 3." in done.err, done.err
    assert "alpha 1.0 has no wheel for this Python and platform, only alpha-1.0-cp311-cp311-win_amd64.whl" in done.err
    assert not lab.control.file("n1", "/home/alice/.orch/cache/env").exists()


@pytest.mark.full(
    "tests/cluster/test_environments.py::test_the_environment_is_installed_where_it_is_missing_or_was_changed_and_nowhere_else",
)
def test_two_runs_at_once_share_one_installation_and_gc_keeps_it_for_as_long_as_one_runs(lab: Lab) -> None:
    program = f"{SAYS}import time\nsys.stdout.flush()\ntime.sleep(600)\n"
    path = job(lab, "both", wheels.wheel(lab.home / "wheels", "alpha", size=2_000_000), program=program)
    profile = lab.profile(hosts=["n1"])
    argv = lab.argv("submit", path, "--profile", profile, "--json")
    both = [lab.control.start(LAPTOP, *argv) for _ in range(2)]
    runs = [json.loads(each.communicate()[0])["run_id"] for each in both]
    assert sorted(made(lab, run)["n1"] for run in runs) == [False, True]
    for run in runs:
        lab.until_said(run, "0 1.0 /home/alice/.orch/cache/env/")
    folder = folder_of(lab, runs[0], "n1")
    age = ["touch", "-d", "2020-01-01", f"/{folder.relative_to(lab.control.file('n1', '/home').parent)}"]
    lab.control.output("n1", *age[:-1], f"{age[-1]}/orch-environment.json")
    assert lab.orch("gc", "--profile", profile).code == 0
    assert folder.exists()
    for run in runs:
        assert lab.orch("cancel", run, "--now").code == 0
    assert lab.orch("gc", "--profile", profile).code == 0
    assert not folder.exists()


@pytest.mark.cluster("slurm", nodes=4)
def test_on_slurm_it_is_built_once_on_the_shared_folder(testbed: Control) -> None:
    shared = "/shared/alice-environment"
    testbed.output("ctl", "mkdir", "-p", shared)
    home = testbed.file("ctl", "/home/alice")
    text = wheels.requirements(wheels.wheel(home / "wheels", "alpha")).replace(str(home), "/home/alice")
    wheels.job(home / "job", "requirements.txt", text, SAYS)
    profile = {"kind": "slurm", "nodes": 3, "nproc_per_node": 1, "time": "1h", "workdir": shared}
    (home / "slurm.yaml").write_text(json.dumps({**profile, "python": sys.executable}))
    done = testbed.orch("submit", "job/job.yaml", "--profile", "slurm.yaml", "--follow")
    assert done.code == 0, done.err
    assert f"0 1.0 {shared}/cache/env/" in done.out
    (folder,) = testbed.file("ctl", f"{shared}/cache/env").glob("*/")
    os.utime(folder / "orch-environment.json", (1, 1))
    assert testbed.orch("gc", "--profile", "slurm.yaml").code == 0
    assert not folder.exists()


@pytest.mark.cluster("slurm", nodes=4)
@pytest.mark.full(
    "tests/cluster/test_environments.py::test_on_slurm_it_is_built_once_on_the_shared_folder",
)
def test_through_a_login_node_it_is_built_there(testbed: Control) -> None:
    shared = "/shared/alice-environment"
    home = testbed.file("n4", "/home/alice")
    text = wheels.requirements(wheels.wheel(home / "wheels", "alpha")).replace(str(home), "/home/alice")
    wheels.job(home / "job", "requirements.txt", text, SAYS)
    profile = {"kind": "slurm", "login": "alice@ctl", "nodes": 2, "nproc_per_node": 1, "time": "1h", "exclude": "n4"}
    (home / "far.yaml").write_text(json.dumps({**profile, "workdir": shared, "python": sys.executable}))
    done = testbed.orch("submit", "job/job.yaml", "--profile", "far.yaml", "--follow", host="n4")
    assert done.code == 0, done.err
    assert f"0 1.0 {shared}/cache/env/" in done.out
