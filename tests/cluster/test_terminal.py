"""A shell on a run's nodes and in its containers, and one rank once more there: over SSH, in Slurm, at a terminal."""

from __future__ import annotations

import json

import pytest

from orchestrator.node.system.processes import wait_gone
from tests.cluster.control import Control
from tests.cluster.lab import LAPTOP, Lab
from tests.patience import PATIENCE
from tests.terminal import terminal
from tests.testbed.machine import ENVIRONMENT, wait_until

KEY = "hunter2-hunter2"
# Goes on until it is cancelled, but for a replay, which ends with 17; or waits, where the file `wait` is at hand.
RANK = """
import json, os, socket, sys, time
names = ("RANK", "WORLD_SIZE", "MODE", "HOME")
print(json.dumps({**{name: os.environ.get(name) for name in names}, "host": socket.gethostname(), "uid": os.getuid(),
                  "key": len(os.environ.get("KEY", "")), "image": os.path.exists("/etc/alternatives") }), flush=True)
if ".replay-" in os.environ["ORCH_RUN_ID"] and "wait" not in sys.argv:
    sys.exit(17)
print("going on", flush=True)
time.sleep(600)
"""
JOB = {"env": {"MODE": "x y"}, "secrets": ["KEY"], "warm_imports": []}


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def typed(lab: Lab, *args: str, lines: str = "", until: str = "", **env: str) -> tuple[int, str]:
    """(exit code, what was shown) of a command of alice's at her terminal, with lines typed after some words."""
    argv = lab.control.argv(LAPTOP, *lab.argv(*args), KEY=KEY, TERM="dumb", **env)
    with terminal(argv, ENVIRONMENT) as screen:
        if until:
            screen.until(until)
        screen.type(lines)
        return screen.code(), screen.text


def test_over_ssh_a_shell_and_a_rank_once_more_on_their_node(lab: Lab) -> None:
    run = lab.submit(lab.job("hold", RANK, **JOB), "-p", lab.profile(hosts=["n1", "n2"]), KEY=KEY)
    lab.until_said(run, "going on")
    assert lab.orch("shell", run, "--node", "1", "--", "hostname").out == "n2\n"
    code, text = typed(
        lab, "shell", run, "--node", "1", lines="tty; pwd; hostname; exit 7\n", until="the run continues"
    )
    assert code == 7
    assert f"\n/home/alice/.orch/runs/{run}/code\nn2\n" in text
    assert "\n/dev/pts/" in text

    (lab.home / "cluster_profiles").mkdir()
    lab.profile("cluster_profiles/two", hosts=["n1", "n2"])
    lab.profile("cluster_profiles/one", hosts=["n3"])
    shown = lab.orch("nodes")
    assert shown.code == 0, shown.err
    assert [line.split()[0] for line in shown.out.splitlines() if line] == [
        "one",
        "HOST",
        "n3",
        "two",
        "HOST",
        "n1",
        "n2",
    ]

    lab.orch("cancel", run)  # its folders on the nodes go with it
    told = f"{run} has ended (cancelled), and its folder was removed: the shell is in the home folder"
    code, text = typed(lab, "shell", run, "--node", "1", lines="pwd; exit 6\n", until="exit ends this shell")
    assert (code, told in text, "\n/home/alice\n" in text, "the run continues" in text) == (6, True, True, False)
    code, text = typed(lab, "replay", run, "--rank", "1")
    said = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    assert (code, said["host"], said["RANK"], said["WORLD_SIZE"]) == (17, "n2", "0", "1")
    assert (said["MODE"], said["key"]) == ("x y", len(KEY))
    assert lab.orch("replay", run, "--rank", "1", "--here", KEY=KEY).code == 17
    assert f"{run}." not in lab.control.output("n2", "ls", ".orch/runs")


def test_lines_to_be_pasted_work_during_a_run_and_after_it(lab: Lab) -> None:
    program = "import os, time\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"
    program += "while 'HOLD' in os.environ and not os.path.exists('gone'): time.sleep(0.1)\n"
    named = lab.job("hand", program, env={"HOLD": "~/x"}, warm_imports=[])
    run = lab.submit(named, "-p", lab.profile(hosts=["n1", "n2"]))
    lab.until_said(run, "rank 0 of 2")

    def paste(host: str, text: str) -> str:
        assert "HOLD='~/x'" in text  # the job's own value, which no shell had read
        return lab.control.output(host, "sh", "-ec", text.replace("HOLD='~/x'", "FREE=1"))

    assert paste("n2", lab.orch("replay", run, "--rank", "1", "--dry-run").out) == "rank 1 of 2"
    lab.orch("cancel", run)
    first, *rest = lab.orch("replay", run, "--rank", "1", "--dry-run").out.split("\n", 2)
    assert first == "# its folder on n2 is gone; from this machine:"
    lab.control.output(LAPTOP, "sh", "-ec", rest[0])
    assert paste("n2", rest[1]) == "rank 1 of 2"

    blocks = [block for block in lab.orch("export", "torchrun", run).out.split("\n\n") if "# node" in block]
    for block in blocks:
        lab.control.output(LAPTOP, "sh", "-ec", block.splitlines()[1])
    second = lab.control.start("n2", "sh", "-ec", blocks[1].partition("# node 1")[2].replace("HOLD=", "FREE="))
    assert paste("n1", "#" + blocks[0].partition("# node 0")[2]) == "rank 0 of 2"
    assert second.communicate(timeout=PATIENCE)[0].strip() == "rank 1 of 2"
    config = lab.orch("export", "accelerate", run, "--node", "1").out
    assert "# CPU: no node has a GPU" in config
    assert "ACCELERATE_USE_CPU=true" in config


@pytest.mark.full(
    "tests/cluster/test_terminal.py::test_over_ssh_a_shell_and_a_rank_once_more_on_their_node",
)
def test_over_ssh_a_closed_window_leaves_nothing_of_a_replay(lab: Lab) -> None:
    job = lab.job("hold", RANK, **JOB, args=["wait"])
    run = lab.submit(job, "-p", lab.profile(hosts=["n1"]), KEY=KEY)
    lab.until_said(run, "going on")
    lab.orch("cancel", run)
    for has_terminal in (True, False):
        argv = lab.control.argv(LAPTOP, *lab.argv("replay", run, "--rank", "0"), KEY=KEY)
        with terminal(
            argv if has_terminal else ["sh", "-c", 'exec "$@" </dev/null | cat', "sh", *argv], ENVIRONMENT
        ) as screen:
            screen.until("going on")
            there = lab.control.processes("n1", "alice", f"{run}.replay-")
            assert there
            screen.hang_up()
        assert wait_gone(there, PATIENCE) == []
        wait_until(
            lambda: f"{run}." not in lab.control.output("n1", "ls", ".orch/runs"), "the end of the replay's folder"
        )


@pytest.mark.cluster("slurm")
@pytest.mark.full(
    "tests/cluster/test_terminal.py::test_over_ssh_a_shell_and_a_rank_once_more_on_their_node",
    "tests/cluster/test_slurm_login.py::test_a_run_is_submitted_followed_requeued_and_brought_home",
)
def test_in_slurm_a_shell_and_a_rank_once_more_inside_the_allocation(lab: Lab) -> None:
    lab.write("slurm.yaml", json.dumps({"kind": "slurm", "nodes": 2, "nproc_per_node": 1}))
    shared = {"ORCH_HOME": "/shared/alice-orch"}
    run = lab.submit(lab.job("hold", RANK, **JOB), "-p", "slurm.yaml", KEY=KEY, **shared)
    log = lab.control.file(LAPTOP, f"/shared/alice-orch/runs/{run}/nodes/1/attempt_0/rank_1.log")
    wait_until(lambda: log.exists() and "going on" in log.read_text(), "rank 1")
    host = lab.orch("status", run, "--json", **shared).json["nodes"][1]["host"]
    assert lab.orch("shell", run, "--node", "1", "--", "hostname", **shared).out == f"{host}\n"
    code, text = typed(
        lab, "shell", run, "--node", "1", lines="tty; hostname; exit 7\n", until="the run continues", **shared
    )
    assert (code, f"\n{host}\n" in text, "/dev/pts/" in text) == (7, True, True)
    code, text = typed(lab, "replay", run, "--rank", "1", **shared)
    said = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    assert (code, said["host"], said["key"]) == (17, host, len(KEY))
    lab.orch("cancel", run, **shared)
    refused = lab.orch("shell", run, **shared)
    assert (refused.code, "has ended, and its nodes are not the run's any more" in refused.err) == (1, True)


@pytest.mark.cluster("docker")
@pytest.mark.full(
    "tests/cluster/test_terminal.py::test_over_ssh_a_shell_and_a_rank_once_more_on_their_node",
)
def test_in_its_container_a_shell_and_a_rank_once_more_in_its_image(lab: Lab, image: str) -> None:
    profile = lab.profile(hosts=["n1", "n2"], runtime="docker", python="python3")
    run = lab.submit(lab.job("hold", RANK, **JOB, container={"image": image}), "-p", profile, KEY=KEY)
    lab.until_said(run, "going on")
    look = ("sh", "-c", "pwd; id -u; ls -d /proc/[0-9]* | wc -l")
    inside = lab.orch("shell", run, "--node", "1", "--", *look).out.split()
    assert inside[:2] == [f"/home/alice/.orch/runs/{run}/code", "48001"]
    assert int(inside[2]) < 12  # the container's own processes
    code, text = typed(lab, "shell", run, "--node", "1", lines="tty; exit 7\n", until="the run continues")
    assert (code, "/dev/pts/" in text) == (7, True)
    lab.orch("cancel", run)
    code, text = typed(lab, "replay", run, "--rank", "1")
    said = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
    assert (code, said["host"], said["HOME"], said["uid"], said["key"]) == (17, "n2", "/tmp", 48001, len(KEY))
    assert lab.control.output("n2", "docker", "ps", "-aq") == ""
    assert f"{run}." not in lab.control.output("n2", "ls", ".orch/runs")
