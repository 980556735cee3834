"""Disks that fail a run over SSH: full while a checkpoint is written, and a damaged checkpoint as the newest."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import TORCH_SLOW_AT_FIRST, TORCH_STEPS, Lab, kill
from tests.cluster.test_ssh_faults import assert_it_went_on, training
from tests.testbed.layout import PEOPLE
from tests.testbed.machine import wait_until


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


@pytest.mark.full(
    "tests/local/test_own_checkpoints.py::test_a_torn_one_is_passed_over",
    "tests/unit/backends/mirror/test_checkpoints.py::test_a_damaged_checkpoint_is_not_brought",
)
def test_a_damaged_checkpoint_that_claims_to_be_the_newest_is_passed_over(lab: Lab) -> None:
    run = training(lab, program=TORCH_SLOW_AT_FIRST)  # the library passes damaged checkpoints over
    folder = lab.control.file("n1", f"/home/alice/.orch/runs/{run}/checkpoints")
    newest = max(path for path in folder.glob("step_*") if (path / "COMMIT").exists())
    planted = folder / "step_00099999"
    shutil.copytree(newest, planted)
    with open(planted / "state.pt", "r+b") as file:
        file.truncate(100)
    for path in (planted, *planted.iterdir()):
        shutil.chown(path, _alice(), _alice())
    kill(lab.agents("n2"))
    assert_it_went_on(lab, run)
    assert not list((lab.home / ".local/state/orch/runs" / run / "checkpoints").glob("step_00099999"))


@pytest.mark.full(
    "tests/local/test_floods.py::test_a_full_disk_costs_the_log_and_not_the_run",
)
def test_a_full_disk_costs_no_checkpoint_that_was_there_and_is_named(lab: Lab) -> None:
    home = "/home/alice/.orch"
    lab.control.output("n1", "mkdir", home)
    options = f"size=96m,mode=700,uid={_alice()},gid={_alice()}"
    lab.control.output("n1", "mount", "-t", "tmpfs", "-o", options, "tmpfs", home, user="root")
    lab.control.undo.callback(lab.control.output, "n1", "umount", home, user="root")
    job = lab.job("steps", TORCH_STEPS, args=["160", "0.1"])
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"]))
    lab.until(run, "collected")
    lab.control.run("n1", "dd", "if=/dev/zero", f"of={home}/filler", "bs=1M")  # until nothing fits any more
    wait_until(lambda: "No space left" in lab.log(run), "the word of the full disk")
    lab.control.output("n1", "rm", f"{home}/filler")
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert f"{home}/runs/{run}/checkpoints" in lab.log(run).split("No space left")[0].splitlines()[-1]
    checked = lab.orch("checkpoints", run, "--verify", "--json").json
    assert {each["verdict"] for each in checked} == {"ok"}
    assert (
        json.loads((lab.home / ".local/state/orch/runs" / run / "verdict.json").read_text())["outcome"] == "succeeded"
    )


def test_a_machine_whose_disk_is_full_at_another_start_is_replaced_by_a_spare(lab: Lab) -> None:
    home = "/home/alice/.orch"
    lab.control.output("n2", "mkdir", home)
    options = f"size=96m,mode=700,uid={_alice()},gid={_alice()}"
    lab.control.output("n2", "mount", "-t", "tmpfs", "-o", options, "tmpfs", home, user="root")
    lab.control.undo.callback(lab.control.output, "n2", "umount", home, user="root")
    run = training(lab, spares=["n3"])
    lab.control.output("n2", "dd", "if=/dev/zero", f"of={home}/filler", "bs=1M", "count=64")
    kill(lab.agents("n2"))
    assert_it_went_on(lab, run)
    (replaced,) = lab.events(run, "replaced")
    assert (replaced["host"], replaced["by"]) == ("n2", "n3")
    assert "MiB left" in replaced["why"]
    lab.assert_nothing_left(run, ("n1", "n3"), away="n2")


def _alice() -> int:
    return next(person.uid for person in PEOPLE if person.name == "alice")
