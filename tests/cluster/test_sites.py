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
    for host in HOSTS:
        testbed.site(host, name)
    profile = lab.profile("site", [*HOSTS], **site.profile)
    told = lab.orch("doctor", "-p", profile, timeout=3 * PATIENCE)
    assert told.code == 0, told.out + told.err
    if "python3 is 3.6" in site.what:
        assert "its python3 is 3.6; 3.9 or newer is needed" in told.out + told.err
    run = lab.submit(lab.job("steps", STEPS, args=["6", "0"]), "-p", profile, timeout=3 * PATIENCE)
    done = lab.wait(run, 2 * PATIENCE)
    assert done.code == 0, done.err
    assert f"weights {weights_after(6)}" in lab.orch("logs", run, "--rank", "0").out
    assert lab.orch("pull", run, "--to", "results").code == 0
    assert list((lab.home / "results").rglob("COMMIT"))
