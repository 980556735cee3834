"""Ranks in podman's containers: rootless, as alice on machines over SSH, and rootful, as root on one machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import Lab
from tests.patience import PATIENCE
from tests.testbed import images
from tests.testbed.layout import PEOPLE
from tests.testbed.machine import ENVIRONMENT

# Adds up over the ranks, writes where a rank writes, and goes on where it is told to.
RANK = """
import json, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(total)
facts = {"total": total.item(), "uid": os.getuid(), "home": os.environ["HOME"]}
facts["inside"] = os.path.exists("/run/.containerenv")
if dist.get_rank() == 0:
    with open(os.environ["ORCH_RESULT_FILE"], "w") as file:
        json.dump(facts, file)
print("added up", flush=True)
if "hold" in sys.argv:
    time.sleep(600)
dist.destroy_process_group()
"""


def job(lab: Lab, name: str, *args: str, **fields: str) -> str:
    mounts = [f"{path}:{path}:ro" for path in images.mounts()]
    box = {"image": images.BASE, "mounts": mounts, "pull": "never", **fields}
    return lab.job(name, RANK, args=list(args), container=box)


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def give_image(testbed: Control, host: str, user: str, **env: str) -> None:
    """Give podman of this user the base image."""
    argv = testbed.argv(host, "podman", "load", "--quiet", user=user, **env)
    with images.base().open("rb") as base:
        subprocess.run(argv, stdin=base, stdout=subprocess.DEVNULL, timeout=PATIENCE, check=True, env=ENVIRONMENT)


@pytest.fixture
def rootless(testbed: Control) -> Iterator[None]:
    """Alice's podman on n1 and n2 has the base image."""

    def furnish(host: str) -> None:
        testbed.output(host, "mkdir", "-p", ".config/containers")
        testbed.output(
            host, "sh", "-c", "cat >.config/containers/storage.conf", stdin='[storage]\ndriver = "overlay"\n'
        )
        give_image(testbed, host, "alice")

    with ThreadPoolExecutor() as pool:
        list(pool.map(furnish, ("n1", "n2")))
    yield
    for host in ("n1", "n2"):
        testbed.output(host, "podman", "system", "migrate")  # ends the process that keeps her namespace


@pytest.mark.full(
    "tests/unit/specs/test_runtimes.py::test_every_runtime_is_entered_as_committed",
    "tests/cluster/test_containers.py::test_killed_agents_and_clients_leave_no_container_and_no_other_is_touched",
)
def test_rootless_podman_over_ssh(lab: Lab, rootless: None) -> None:
    profile = lab.profile(hosts=["n1", "n2"], runtime="podman")
    own = {"shm": "64MB"}  # the node's own /dev/shm needs a /dev/mqueue, which systemd mounts; nobody does here
    run = lab.submit(job(lab, "add", **own), "-p", profile)
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    found = lab.status(run)["result"]
    alice = PEOPLE[0]
    assert found == {"total": 3, "uid": alice.uid, "home": "/tmp", "inside": True}
    boxes = lab.events(run, "container")
    assert [(each["runtime"], len(each["id"])) for each in boxes] == [("podman", 64)] * 2
    assert len({each["image_id"] for each in boxes}) == 1

    run = lab.submit(job(lab, "hold", "hold", **own), "-p", profile)
    lab.until_said(run, "added up", rank=0)
    assert lab.orch("shell", run, "--node", "1", "--", "id", "-u").out == f"{alice.uid}\n"
    assert lab.orch("cancel", run).code == 0
    for host in ("n1", "n2"):
        assert lab.control.output(host, "podman", "ps", "--all", "--quiet") == ""
        assert lab.control.output(host, "ls", ".orch/runs") == ""


@pytest.mark.full(
    "tests/unit/specs/test_runtimes.py::test_every_runtime_is_entered_as_committed",
)
def test_rootful_podman_on_one_machine(lab: Lab) -> None:
    config = lab.control.file("n1", "/srv/storage.conf")
    config.write_text('[storage]\ndriver = "overlay"\ngraphroot = "/srv/podman"\nrunroot = "/run/podman"\n')
    env = {"CONTAINERS_STORAGE_CONF": "/srv/storage.conf"}
    give_image(lab.control, "n1", "root", **env)
    path = job(lab, "add")
    lab.control.output("n1", "mkdir", "-p", "/srv/job", user="root")
    folder = lab.control.file("n1", "/srv/job")
    for name in ("main.py", "add.yaml"):
        (folder / name).write_text((lab.home / Path(path).parent / name).read_text())
    (folder / "here.yaml").write_text(f"kind: local\nnproc_per_node: 2\nruntime: podman\npython: {sys.executable}\n")
    submit = ("submit", "/srv/job/add.yaml", "-p", "/srv/job/here.yaml", "--follow", "--json")
    done = lab.control.orch(*submit, host="n1", user="root", ORCH_HOME="/srv/orch", **env)
    assert done.code == 0, lab.control.orch("why", "last", host="n1", user="root", ORCH_HOME="/srv/orch").out
    assert done.json["result"] == {"total": 3, "uid": 0, "home": "/tmp", "inside": True}
    assert lab.control.output("n1", "podman", "ps", "--all", "--quiet", user="root", **env) == ""
