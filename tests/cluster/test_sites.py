"""One submit, from doctor to pull, at each site of tests/testbed/sites.py."""

from __future__ import annotations

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import STEPS, Lab, weights_after
from tests.patience import PATIENCE
from tests.testbed.sites import SITES

HOSTS = ("n1", "n2")


@pytest.mark.full("tests/unit/node/system/test_interpreter.py", "tests/unit/transport/test_start_files.py")
@pytest.mark.parametrize("name", SITES)
def test_a_run_goes_from_doctor_to_pull_at_each_site(testbed: Control, name: str) -> None:
    lab, site = Lab(testbed), SITES[name]
    testbed.at_site(name, *HOSTS)
    profile = lab.profile("site", [*HOSTS], **site.profile)
    told = lab.orch("doctor", "-p", profile, timeout=3 * PATIENCE, **site.variables)
    assert told.code == 0, told.out + told.err
    by_program = f"note: n1, n2: connected by your ssh program: {site.why_program}\n"
    assert by_program in told.out if site.why_program else "ssh program" not in told.out
    if "python3 is 3.6" in site.what:
        assert "its python3 is 3.6; 3.9 or newer is needed" in told.out + told.err
    job = lab.job("steps", STEPS, args=["6", "0"])
    run = lab.submit(job, "-p", profile, timeout=3 * PATIENCE, **site.variables)
    done = lab.wait(run, 2 * PATIENCE)
    assert done.code == 0, done.err
    assert f"weights {weights_after(6)}" in lab.orch("logs", run, "--rank", "0").out
    assert lab.orch("pull", run, "--to", "results", **site.variables).code == 0
    assert list((lab.home / "results").rglob("COMMIT"))
