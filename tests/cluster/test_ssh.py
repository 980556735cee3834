"""Runs over SSH as alice, from a laptop that may go away: trained, followed, cancelled, and nothing left."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.node.system.processes import identify
from orchestrator.runs.files.samples import read_samples
from orchestrator.runs.store import RunDir
from tests.cluster.control import Control
from tests.cluster.lab import HOLD, LAPTOP, STEPS, TORCH_STEPS, Lab, kill, settled
from tests.patience import PATIENCE
from tests.testbed.layout import REPO

# The wall clock alone, and all that Python asks of it. libfaketime breaks Python's time.sleep.
TWO_HOURS_AHEAD = """
struct timespec { long seconds, nanoseconds; };
extern long syscall(long number, ...);
#ifdef __aarch64__
enum { CLOCK_GETTIME = 113 };
#else
enum { CLOCK_GETTIME = 228 };
#endif
int clock_gettime(int clock, struct timespec *now)
{
    long failed = syscall(CLOCK_GETTIME, (long) clock, now);
    if (!failed && clock == 0)
        now->seconds += 7200;
    return (int) failed;
}
"""


# Looks at a rank's log as orch top and the page do, until there is a line.
LOOK = """
import sys, time
from orchestrator.runs.store import state_root
from orchestrator.views.reader import Reader
reader, rank = Reader(state_root(), lambda *_: ""), int(sys.argv[2])
run = reader.find(sys.argv[1])
while not reader.log(run, rank).size:
    reader.watched.ask(run, rank)
    time.sleep(0.1)
print(reader.log(run, rank).last(1).lines[0].text)
"""


@pytest.fixture
def lab(testbed: Control) -> Lab:
    return Lab(testbed)


def test_twelve_ranks_train_while_the_laptop_is_closed_and_everything_is_there_later(lab: Lab) -> None:
    profile = lab.profile(nproc_per_node=4)
    warm = "job.warm_imports=[torch._dynamo, orchestrator.training.train, sklearn.datasets]"  # once a node, not a rank
    sets = [f"--set={each}" for each in ("job.training.epochs=1", "job.training.eval_every=0", warm)]
    run = lab.submit(str(REPO / "jobs" / "digits_ddp.yaml"), "--profile", profile, *sets)
    kill(lab.supervisor())
    settled(lambda: not any(lab.agents(host) for host in ("n1", "n2", "n3")), "the end of all agents")
    assert lab.supervisor() == []
    assert lab.status(run)["state"] in ("starting", "running", "pending", "finishing")  # as it was when it was closed
    assert lab.wait(run).code == 0
    state = lab.status(run)
    assert (state["state"], state["world_size"]) == ("succeeded", 12)
    assert [node["ranks"] for node in state["nodes"]] == [[0, 4], [4, 8], [8, 12]]
    assert "accuracy" in lab.orch("logs", run).out
    assert lab.orch("logs", run, "--rank", "11").code == 0
    assert "checksums verified" in lab.orch("checkpoints", run, "--verify").out
    lab.assert_nothing_left(run)
    left = [path.name for path in lab.control.file("n2", "/home/alice/.orch").iterdir()]
    assert sorted(left) == ["cache", "runs"]


def test_logs_of_other_ranks_come_when_they_are_asked_for(lab: Lab) -> None:
    program = "import os, time\nprint('here is', os.environ['RANK'], flush=True)\ntime.sleep(600)\n"
    run = lab.submit(lab.job("talk", program), "--profile", lab.profile(nproc_per_node=2))
    lab.until_said(run, "here is 0")
    assert lab.orch("logs", run).out == "here is 0\n"
    assert lab.log(run, rank=5) == ""
    settled(lambda: lab.orch("logs", run, "--rank", "5").out == "here is 5\n", "the log of rank 5")
    following = lab.control.start(LAPTOP, *lab.argv("logs", run, "--rank", "5", "-f"))
    assert following.stdout is not None
    assert following.stdout.readline() == "here is 5\n"  # she goes on following it, and nobody waits for her
    assert lab.control.python(LAPTOP, "-c", LOOK, run, "4").out == "here is 4\n"
    both = ["n1/r2 here is 2", "n1/r3 here is 3"]
    settled(lambda: sorted(lab.orch("logs", run, "--node", "1").out.splitlines()) == both, "the logs of node 1")
    unasked = lab.control.file("n1", f"/home/alice/.orch/runs/{run}/nodes/0/attempt_0/rank_1.log")
    settled(lambda: unasked.exists() and unasked.read_text(), "what rank 1 says, for which nobody asks")
    done = lab.orch("cancel", run, "--now")
    assert (done.code, done.err.count("0 processes left")) == (0, 3)
    assert lab.status(run)["state"] == "cancelled"
    lab.assert_nothing_left(run)
    assert len(lab.orch("logs", run, "--all").out.splitlines()) == 6  # all of them are here now


def test_a_cancel_takes_a_checkpoint_from_which_another_run_goes_on_elsewhere(lab: Lab) -> None:
    job, profile = lab.job("steps", STEPS, args=["60", "0.1"]), lab.profile(hosts=["n1", "n2"])
    run = lab.submit(job, "--profile", profile)
    lab.until(run, "collected")
    assert lab.orch("cancel", run).code == 0
    lab.assert_nothing_left(run, ("n1", "n2"))
    again = lab.submit(job, "--profile", lab.profile("other", hosts=["n3"], nproc_per_node=2), "--resume", run)
    assert lab.wait(again).code == 0
    first = int(lab.log(again).split("begins at ")[1].split()[0])
    steps = [int(row.split()[0]) for row in lab.orch("checkpoints", run).out.splitlines()[1:-1]]
    assert first == max(steps) > 0


@pytest.mark.full(
    "tests/cluster/test_ssh.py::test_a_cancel_takes_a_checkpoint_from_which_another_run_goes_on_elsewhere",
)
def test_the_best_checkpoint_comes_here_beside_the_newest_ones(lab: Lab) -> None:
    at_its_end = "save_every=5, metric={'accuracy': 1 - abs(step - 9) / 100}, "
    program = TORCH_STEPS.replace("save_every=5, ", at_its_end)
    kept = {"keep": 2, "keep_best": "accuracy"}
    job = lab.job("best", program, args=["30", "0.05"], checkpoint=kept)
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"]))
    assert lab.wait(run).code == 0
    listed = lab.orch("checkpoints", run, "--verify").out
    assert [row.split()[0] for row in listed.splitlines()[1:-1]] == ["10", "25", "30"], listed
    assert lab.orch("pull", run, "--checkpoint", "best", "--to", "best-of-it").code == 0
    assert (lab.home / "best-of-it" / "checkpoints" / "step_00000010" / "COMMIT").exists()
    more = lab.submit(job, "--profile", lab.profile(hosts=["n3"]), "--resume", f"{run}:best")
    assert lab.wait(more).code == 0
    assert "rank 0 begins at 10" in lab.log(more)
    lab.assert_nothing_left(run, ("n1", "n2"))


def test_code_travels_once_and_only_what_has_changed_again(lab: Lab) -> None:
    job, profile = lab.job("hello", "print('one')\n"), lab.profile(hosts=["n1"])
    lab.write("hello/data.txt", "x" * 1000)
    cache = lab.control.file("n1", "/home/alice/.orch/cache/code")
    assert lab.wait(lab.submit(job, "--profile", profile)).code == 0
    before = {path.name: path.stat().st_ino for path in cache.iterdir()}
    lab.write("hello/main.py", "print('two')\n")
    run = lab.submit(job, "--profile", profile)
    assert lab.wait(run).code == 0
    assert lab.log(run) == "two\n"
    after = {path.name: path.stat().st_ino for path in cache.iterdir()}
    assert {name: after[name] for name in before} == before  # what was there has not been written again
    assert len(after) == len(before) + 1


def test_a_secret_is_in_no_argv_no_environment_and_one_private_file(lab: Lab) -> None:
    canary = "canary-5d41402abc4b2a76b9719d911017c592"
    job = lab.job("hold", HOLD, launcher="fork", secrets=["TOKEN_OF_MINE"])
    run = lab.submit(job, "--profile", lab.profile(hosts=["n1", "n2"]), TOKEN_OF_MINE=canary)
    lab.until_said(run, "holding")
    lab.until(run, "started", 2)
    assert all(lab.ranks(run, host) for host in ("n1", "n2"))  # forked: what they were given is in their memory alone
    for host in (LAPTOP, "n1", "n2"):
        for process in lab.control.processes(host):
            for name in ("cmdline", "environ"):
                text = Path(f"/proc/{process.pid}/{name}").read_bytes() if identify(process.pid) else b""
                assert canary.encode() not in text, f"{name} of {process} on {host}"
    kept = [path for host in (LAPTOP, "n1", "n2") for path in lab.control.file(host, "/home/alice").rglob("*")
            if path.is_file() and not path.is_symlink() and canary.encode() in path.read_bytes()]  # fmt: skip
    assert [path.name for path in kept] == ["secrets.json"]  # for another start, on the laptop alone
    assert kept[0].stat().st_mode & 0o077 == 0
    assert lab.orch("cancel", run, "--now").code == 0
    assert not kept[0].exists()


def test_processes_of_the_run_are_found_by_their_mark(lab: Lab) -> None:
    """What the tests above rely on."""
    run = lab.submit(lab.job("hold", HOLD), "--profile", lab.profile(hosts=["n1"], nproc_per_node=2))
    lab.until_said(run, "holding")
    lab.until(run, "started")
    assert len(lab.ranks(run, "n1")) == 2
    assert len(lab.agents("n1")) == 1
    assert lab.orch("cancel", run, "--now").code == 0
    assert lab.ranks(run, "n1") == []
    settled(lambda: not lab.agents("n1"), "the agent's end")


def test_two_submits_at_once_on_the_same_hosts_and_twenty_looks_meanwhile(lab: Lab) -> None:
    profile, jobs = (
        lab.profile(hosts=["n1", "n2"]),
        [lab.job(name, STEPS, args=["20", "0.1"]) for name in ("one", "two")],
    )
    submits = [lab.control.start(LAPTOP, *lab.argv("submit", job, "--profile", profile)) for job in jobs]
    looks = []
    for _ in range(5):
        four = [lab.control.start(LAPTOP, *lab.argv("status", "--json")) for _ in range(4)]
        looks += [(each.wait(PATIENCE), json.loads(each.communicate()[0] or "[]")) for each in four]
    assert [code for code, _ in looks] == [0] * 20
    assert {len(runs) for _, runs in looks} <= {0, 1, 2}
    assert [each.wait(PATIENCE) for each in submits] == [0, 0]
    runs = [found["run_id"] for found in lab.orch("status", "--json").json]
    assert sorted(run.partition("-")[0] for run in runs) == ["one", "two"]
    for run in runs:
        assert lab.wait(run).code == 0, lab.orch("why", run).out
        assert lab.log(run).count("weights ") == 1
        lab.assert_nothing_left(run, ("n1", "n2"))


def test_a_clock_that_is_two_hours_off_changes_nothing_and_is_not_shown(lab: Lab) -> None:
    library = lab.control.file("n1", "/srv/ahead.so")
    compiler = ["gcc", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-o", str(library), "-"]
    subprocess.run(compiler, input=TWO_HOURS_AHEAD, text=True, check=True, timeout=PATIENCE)
    lab.control.sshd("n1", "SetEnv LD_PRELOAD=/srv/ahead.so")
    before = time.time()
    run = lab.submit(lab.job("steps", STEPS, args=["10", "0"]), "--profile", lab.profile(hosts=["n1", "n2"]))
    assert lab.wait(run).code == 0, lab.orch("why", run).out
    assert lab.events(run, "go")[0]["time"] > before + 7000  # as n1 has written it
    # Of n2's, whose answer may come late, it may be said that it is seconds off.
    assert [round(event["ahead"] / 60) for event in lab.events(run, "clock") if event["of"] == 0] == [120]
    state = lab.status(run)
    assert before < state["created"] < state["started"] < state["ended"] < time.time() + 2
    found = lab.orch("doctor", "--profile", lab.profile(hosts=["n1", "n2"]), "--json").json
    assert {each["host"]: each["level"] for each in found if each["what"] == "clock"} == {"n1": "warn", "n2": "ok"}


def test_how_busy_each_host_is_comes_home_while_the_run_goes_on_and_stays(lab: Lab) -> None:
    program = "import os, time\nwhile True:\n    time.sleep(0.2 if os.environ['RANK'] == '0' else 0)\n"
    run = lab.submit(lab.job("uneven", program), "--profile", lab.profile(hosts=["n1", "n2"]))
    folder = RunDir(lab.home / ".local/state/orch/runs" / run)

    def used() -> dict[int, float]:
        """How many seconds each rank has computed, as the laptop knows."""
        samples = [sample for node in read_samples(folder) for sample in node.samples]
        ranks = [(each.rank, each.cpu * sample.seconds) for sample in samples for each in sample.ranks]
        return {rank: sum(each for other, each in ranks if other == rank) for rank, _ in ranks}

    settled(lambda: used().get(1, 0.0) > used().get(0, 100.0) + 0.3, "that rank 1 computes and rank 0 does not")
    assert lab.orch("cancel", run, "--now").code == 0
    lab.assert_nothing_left(run)
    found = lab.orch("metrics", run, "--json").json
    assert [(node["node"], node["host"]) for node in found["nodes"]] == [(0, "n1"), (1, "n2")]
    assert [len(node["samples"]) for node in found["nodes"]] == [len(each.samples) for each in read_samples(folder)]
