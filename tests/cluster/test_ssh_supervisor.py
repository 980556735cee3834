"""Another machine of alice's looks after the run: submitted from her laptop, asked about there, with its own keys."""

from __future__ import annotations

import sys

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import LAPTOP, Lab
from tests.patience import PATIENCE
from tests.testbed.layout import REPO

BOX, TOKEN = "n3", {"TOKEN_OF_MINE": "canary"}
SAY = "import os, time\nprint('the token has', len(os.environ['TOKEN_OF_MINE']), flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def install_orch(lab: Lab) -> str:
    """An orch on the box; its path."""
    path = lab.control.file(BOX, "/home/alice/orch")
    path.write_text(f'#!/bin/sh\nPYTHONPATH={REPO} exec {sys.executable} -m orchestrator.cli "$@"\n')
    path.chmod(0o755)
    return "/home/alice/orch"


def test_a_run_is_handed_over_and_asked_about_from_the_laptop(lab: Lab) -> None:
    job = lab.job("say", SAY, secrets=["TOKEN_OF_MINE"])
    profile = lab.profile(hosts=["n1"], supervisor=f"alice@{BOX}", supervisor_orch="/home/alice/orch")
    submit = ("submit", job, "--profile", profile)
    refused = lab.orch(*submit, **TOKEN)
    assert refused.code == 1
    assert "alice@n3 is the supervisor of this profile, but its /home/alice/orch can't take the run over" in refused.err
    install_orch(lab)
    lab.control.output(BOX, "mv", ".ssh/known_hosts", ".ssh/known_hosts.away")
    refused = lab.orch(*submit, **TOKEN)
    assert refused.code == 1
    assert (
        "alice@n3, the supervisor of this profile, refused the run: n1 (n1:22): its host key is not in known_hosts"
        in refused.err
    )
    assert lab.agents("n1") == []
    lab.control.output(BOX, "mv", ".ssh/known_hosts.away", ".ssh/known_hosts")
    done = lab.orch(*submit, **TOKEN)
    assert done.code == 0, done.err
    run = done.out.strip()
    assert "which alice@n3 supervises: you can shut down this machine" in done.err
    assert lab.supervisor() == []
    shown = lab.orch("status", "--json")
    assert (shown.json, lab.orch("status").err.split(";")[0]) == ([], f"alice@n3 supervises {run}")
    with lab.control.start(LAPTOP, *lab.argv("logs", "last", "--follow")) as follow:
        assert follow.stdout is not None
        assert follow.stdout.readline() == "the token has 6\n"
        assert lab.orch("cancel", run[:-1], "--now").code == 0
        assert follow.wait(PATIENCE) is not None
    assert lab.status(run)["state"] == "cancelled"
    assert lab.orch("wait", run).code == 103
    assert lab.orch("checkpoints", run).code == lab.orch("why", run).code == 0
    assert lab.of_run(run, "n1") == []
    assert not (lab.home / ".local/state/orch/runs").exists()  # nothing but a pointer is here


@pytest.mark.full(
    "tests/cluster/test_ssh_supervisor.py::test_a_run_is_handed_over_and_asked_about_from_the_laptop",
    "tests/cluster/test_ssh_sweeps.py::test_a_search_gives_values_and_stops_what_is_bad",
)
def test_sweeps_and_searches_are_handed_over_whole(lab: Lab) -> None:
    install_orch(lab)
    script = "import json, os, sys\nprint('x', sys.argv[-1], flush=True)\n" + (
        "json.dump({'loss': float(sys.argv[-1].partition('=')[2])}, open(os.environ['ORCH_RESULT_FILE'], 'w'))\n"
    )
    search = {"space": {"--x": {"low": 1.0, "high": 2.0}}}
    job = lab.job("points", script, launcher="exec", metric="loss", search=search)
    profile = lab.profile(hosts=["n1"], supervisor=f"alice@{BOX}", supervisor_orch="/home/alice/orch")
    for options, count in ((("--sweep", "--x=3,4"), 2), (("--search", "tpe", "--trials", "1"), 1)):
        done = lab.orch("submit", job, "--profile", profile, *options)
        assert done.code == 0, done.err
        sweep = done.out.strip()
        said = f"submitted {sweep}: {count} run{'s' * (count > 1)}, which alice@{BOX} supervises"
        assert f"{said}: you can shut down this machine" in done.err
        assert lab.supervisor() == []
        waited = lab.orch("wait", sweep)
        assert (waited.code, waited.err) == (0, f"{sweep} succeeded: {count} runs: {count} succeeded\n")
        logged = lab.orch("logs", f"{sweep}.{count - 1}").out
        assert logged.startswith("x --x=4\n" if options[0] == "--sweep" else "x --x=1.")
        assert lab.orch("status", sweep, "--json").json["state"] == "succeeded"
    assert not (lab.home / ".local/state/orch/runs").exists()  # nothing but pointers is here
