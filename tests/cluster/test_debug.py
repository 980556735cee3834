"""Ranks debugged where they run: over SSH, in Slurm and in containers, by their user and by nobody else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.control import Control
from tests.cluster.lab import LAPTOP, Lab, settled
from tests.cluster.test_containers import container
from tests.patience import PATIENCE

# Rank 0 waits for rank 1 in collectives that have less time than a person takes.
SUM = """import os, torch, torch.distributed as dist
from datetime import timedelta
mine = 40 + int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=timedelta(seconds=1))
def add(value):
    total = torch.tensor([float(value)])
    dist.all_reduce(total)
    return total
print("sum", add(mine).item(), flush=True)
dist.destroy_process_group()
"""
ALONE = """import os
mine = 40 + int(os.environ["RANK"])
def add(value):
    return value + 1
print("sum", add(mine), flush=True)
"""
# Say what whatever listens on this machine's loopback, or has a debugger's name, answers to a debugger in some time.
KNOCK = r"""
import json, socket, sys
body = json.dumps({"seq": 1, "type": "request", "command": "initialize", "arguments": {"adapterID": "x"}}).encode()
def knock(family, address):
    with socket.socket(family) as door:
        door.settimeout(float(sys.argv[1]))
        try:
            door.connect(address)
            door.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            return door.recv(100)
        except OSError:
            return b""
found = {}
for line in open("/proc/net/unix"):
    name = line.split()[-1]
    if name.startswith("@orch-debugger"):
        found["unix"] = b"Content-Length" in knock(socket.AF_UNIX, "\0" + name[1:])
for line in list(open("/proc/net/tcp"))[1:] if "all" in sys.argv else ():
    _, local, _, state, *rest = line.split()
    if state == "0A" and local.startswith("0100007F"):
        port = int(local.partition(":")[2], 16)
        found[port] = b"Content-Length" in knock(socket.AF_INET, ("127.0.0.1", port))
print(json.dumps(found))
"""


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


@contextmanager
def debugging(lab: Lab, *args: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """(the command, VS Code's configuration) of a run whose rank 1 waits for a debugger."""
    process = lab.control.start(LAPTOP, *lab.argv("debug", *args, "--rank", "1", "--json"), **env)
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    yield process, json.loads(line)
    assert process.wait(PATIENCE) == 0, process.stderr.read()


def attach(
    lab: Lab, found: dict[str, Any], source: str, lines: list[int], stops: list[str], pause: float = 0
) -> list[Any]:
    """What a debugger of alice's on her laptop finds where the rank stops."""
    order = {"configuration": found, "breakpoints": {source: lines}, "stops": stops, "pause": pause}
    done = lab.control.python(LAPTOP, "-m", "tests.dap", stdin=json.dumps(order))
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def knock(lab: Lab, host: str, user: str) -> dict[str, bool]:
    """Which doors of a host open to a debugger of a user's."""
    which = ["2", "all"] if user == "bob" else ["30"]  # her own debugger's other door is for the rank
    return dict(json.loads(lab.control.output(host, "/usr/bin/python3", "-c", KNOCK, *which, user=user)))


def test_over_ssh_a_rank_is_debugged_by_its_user_alone_and_the_others_wait(lab: Lab) -> None:
    job, profile = lab.job("sum", SUM), lab.profile(hosts=["n1", "n2"])
    source = "/home/alice/sum/main.py"
    with debugging(lab, job, "-p", profile) as (_, found):
        assert found["pathMappings"][0]["localRoot"] == "/home/alice/sum"
        for host in (LAPTOP, "n2"):
            answers = knock(lab, host, "bob")
            assert answers
            assert not any(answers.values()), answers
        assert knock(lab, "n2", "alice")["unix"]  # the very same door
        stacks = lab.orch("stacks", "last").out
        assert "rank 0, node 0 (n1):" in stacks
        assert "rank 1, node 1 (n2):" in stacks
        assert "wait_for_debugger" in stacks
        stops = attach(lab, found, source, [3, 6], ["os.environ['RANK']", "value"], pause=1.5)
        assert stops == [["<module>", source, 3, "'1'"], ["add", source, 6, "41"]]
    assert "sum 81.0\n" in lab.log(lab.status()["run_id"])


def test_over_ssh_a_port_of_a_node_is_here_for_its_user_alone(lab: Lab) -> None:
    job, profile = lab.job("hold", "import time\ntime.sleep(600)\n", launcher="exec"), lab.profile(hosts=["n1", "n2"])
    run = lab.submit(job, "-p", profile)
    lab.until(run, "launcher_started", 2)
    lab.control.start("n2", "/usr/bin/python3", "-m", "http.server", "18080", "--bind", "127.0.0.1")
    dial = ("bash", "-c", "</dev/tcp/127.0.0.1/18080")
    settled(lambda: lab.control.run("n2", *dial).code == 0, "the server on n2")
    process = lab.control.start(LAPTOP, *lab.argv("port", run, "18080:1"))
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    get = ("/usr/bin/python3", "-c", f"import urllib.request as u; print(u.urlopen('http://{address}/').read()[:9])")
    assert lab.control.output(LAPTOP, *get) == "b'<!DOCTYPE'"
    refused = lab.control.run(LAPTOP, *get, user="bob")
    assert refused.code != 0
    assert "reset" in refused.err.lower() or "RemoteDisconnected" in refused.err
    lab.orch("cancel", run, "--now")
    assert process.wait(PATIENCE) == 0
    assert process.stderr is not None
    said = process.stderr.read()
    assert "refused a connection of user bob" in said
    assert f"{run} has ended" in said


@pytest.mark.cluster("slurm")
@pytest.mark.full(
    "tests/cluster/test_debug.py::test_over_ssh_a_rank_is_debugged_by_its_user_alone_and_the_others_wait",
)
def test_in_slurm_a_rank_of_a_run_is_debugged_once_more(lab: Lab) -> None:
    lab.write("slurm.yaml", json.dumps({"kind": "slurm", "nodes": 2, "nproc_per_node": 1, "python": sys.executable}))
    shared = {"ORCH_HOME": "/shared/alice-orch"}
    run = lab.submit(lab.job("alone", ALONE, launcher="exec"), "-p", "slurm.yaml", **shared)
    assert lab.orch("wait", run, **shared).code == 0
    with debugging(lab, run, **shared) as (_, found):
        source = f"{found['pathMappings'][0]['localRoot']}/main.py"
        assert source.startswith("/shared/alice-orch/runs/")
        again = source.split("/")[-3]
        host = lab.orch("status", again, "--json", **shared).json["nodes"][1]["host"]
        answers = knock(lab, host, "bob")
        assert "unix" in answers
        assert not any(answers.values()), answers
        assert "wait_for_debugger" in lab.orch("stacks", again, **shared).out
        assert attach(lab, found, source, [4], ["value"]) == [["add", source, 4, "41"]]


@pytest.mark.cluster("docker")
@pytest.mark.full(
    "tests/cluster/test_debug.py::test_over_ssh_a_rank_is_debugged_by_its_user_alone_and_the_others_wait",
)
def test_in_its_container_a_rank_is_debugged(lab: Lab, image: str) -> None:
    source = "/home/alice/alone/main.py"
    fields = {"launcher": "exec", "container": container(image)}
    profile = lab.profile(hosts=["n1", "n2"], runtime="docker")
    with debugging(lab, lab.job("alone", ALONE, **fields), "-p", profile) as (_, found):
        answers = knock(lab, "n2", "bob")
        assert "unix" in answers
        assert not any(answers.values()), answers
        assert "wait_for_debugger" in lab.orch("stacks", "last").out
        assert attach(lab, found, source, [4], ["value"]) == [["add", source, 4, "41"]]
    without = lab.profile("without", hosts=["n1", "n2"], runtime="docker", python="python3")
    done = lab.orch("debug", lab.job("alone", ALONE, **fields), "-p", without, "--rank", "1")
    assert done.code == 100
    assert "python3 has no debugpy" in done.err
    assert "pip install debugpy" in done.err


@pytest.mark.cluster("slurm")
@pytest.mark.full(
    "tests/cluster/test_debug.py::test_over_ssh_a_rank_is_debugged_by_its_user_alone_and_the_others_wait",
)
def test_through_a_login_node_a_rank_is_debugged(lab: Lab) -> None:
    far = {"kind": "slurm", "login": "alice@n3", "workdir": "/shared/alice-login", "nodes": 2, "nproc_per_node": 1}
    lab.write("far.yaml", json.dumps({**far, "python": sys.executable}))
    source = "/home/alice/alone/main.py"
    with debugging(lab, lab.job("alone", ALONE, launcher="exec"), "-p", "far.yaml") as (_, found):
        assert found["pathMappings"][0]["remoteRoot"].startswith("/shared/alice-login/runs/")
        assert "wait_for_debugger" in lab.orch("stacks", "last").out
        assert attach(lab, found, source, [4], ["value"]) == [["add", source, 4, "41"]]
