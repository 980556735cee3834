"""docs/backends/slurm.md, followed word for word: its profiles written, its commands typed, its lines printed."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.cluster.control import Control
from tests.cluster.test_slurm_login import LAPTOP, Laptop, laptop
from tests.testbed.layout import REPO
from tests.testbed.machine import wait_until

__all__ = ["laptop"]
pytestmark = pytest.mark.cluster("slurm", nodes=4)

PAGE = (REPO / "docs" / "backends" / "slurm.md").read_text()
HERE = {"shared": "/shared/alice", LAPTOP: "/home/alice/far"}


def _section(title: str) -> str:
    """The text under a heading; that before the first one without a title."""
    return PAGE.partition(f"## {title}\n" if title else "\n")[2].partition("\n## ")[0]


def _commands(text: str) -> list[tuple[list[str], list[str]]]:
    """(words, the lines that it prints) of each `$ orch ...` of the blocks."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language:
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, printed = part.partition("\n")
            found.append((shlex.split(line), [line for line in printed.splitlines() if line.strip()]))
    return found


def _shape(line: str) -> str:
    """The line without what differs from run to run: ids, numbers, the machines that Slurm chose, width of columns."""
    line = re.sub(r"\b([a-z_]+)-[a-z2-9]{6}\b", r"\1-ID", line)  # first, because an id can begin like a host
    line = re.sub(r"\bn(\d+|\[[\d,-]+\])", "HOST", line)
    return " ".join(re.sub(r"(?<![a-z])\d[\d.,:]*", "N", line).split())


def _follow(testbed: Control, host: str, folder: str, text: str) -> None:
    testbed.output(host, "mkdir", "-p", f"{folder}/cluster_profiles")
    for path, profile in re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        testbed.output(host, "sh", "-c", 'cat >"$1"', "sh", f"{folder}/{path}", stdin=profile)
    env = {"PYTHONPATH": str(REPO), "NO_COLOR": "1"}
    for words, lines in _commands(text):
        assert words[0] == "orch"
        argv = ("env", f"--chdir={folder}", sys.executable, "-m", "orchestrator.cli", *words[1:])
        done = testbed.run(host, *argv, **env)
        assert done.code == 0, f"{shlex.join(words)}: {done.out}{done.err}"
        printed = iter([_shape(line) for line in [*done.err.splitlines(), *done.out.splitlines()]])
        for line in lines:
            assert _shape(line) in printed, f"{shlex.join(words)} does not print {line!r}:\n{done.out}{done.err}"


def test_on_the_cluster(testbed: Control) -> None:
    assert len(_commands(_section(""))) == 4
    _follow(testbed, "ctl", HERE["shared"], _section(""))
    state = testbed.orch("status", "last", "--json").json
    run = state["run_id"]
    assert (state["state"], state["world_size"]) == ("succeeded", 12)
    (job,) = testbed.output("ctl", "squeue", "-h", "--states=all", "-o", "%i", f"--name={run}").split()
    assert f"Comment=orch {run}" in testbed.output("ctl", "scontrol", "show", "job", job)
    accounted = ("sacct", "-n", "-X", "-P", "-j", job, "-o", "State")
    wait_until(lambda: testbed.output("ctl", *accounted) == "COMPLETED", "the job's end in the accounting")
    task = testbed.file("ctl", f"{HERE['shared']}/orch/runs/{run}/nodes/0/task.json")
    wait_until(lambda: not task.exists(), "the end of the task with its token")


@pytest.mark.full(
    "tests/cluster/test_slurm_page.py::test_on_the_cluster",
)
def test_from_a_laptop(laptop: Laptop) -> None:
    testbed, text = laptop.testbed, _section("From a laptop")
    assert len(_commands(text)) == 4
    python = Path("/shared/venv/bin/python")  # as the page has it: one path for all nodes
    testbed.output("ctl", "mkdir", "-p", str(python.parent))
    program = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    testbed.output("ctl", "sh", "-c", 'cat >"$1" && chmod +x "$1"', "sh", str(python), stdin=program)
    _follow(testbed, LAPTOP, HERE[LAPTOP], text)
