"""A submit is killed at every step that it records: its run is ended or started, and the run's files tell which."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.node.system.processes import marked, wait_gone
from orchestrator.runs.dependencies import is_queued
from orchestrator.runs.start_lock import SHOWS_ITSELF_SECONDS, is_being_started
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir
from tests.patience import PATIENCE

from .conftest import REPO, Orch

CRASH = REPO / "tests/soak/crash.py"
NO_RUN, ENDED, STARTED = "no run", "orch submit ended before it had started", ""


@dataclass(frozen=True)
class Step:
    """A step of a submit, what its run's files tell of it, and what follows if the submit is killed just after it."""

    act: str
    handle: HandleStatus | None
    follows: str
    queued: bool = False


STEPS = [
    Step("1:/starting", None, NO_RUN),
    Step("1:/run.json'", None, ENDED),
    Step("1:/plan.json'", None, ENDED),
    Step("1:/code.json'", None, ENDED),
    Step("1:/handle.json'", HandleStatus.INTENT, ENDED),
    Step("1:/nodes/0/start_0", HandleStatus.INTENT, ENDED),
    Step("1:'agent'", HandleStatus.INTENT, STARTED),
    Step("1:/start_0'", HandleStatus.INTENT, STARTED),
    Step("2:/handle.json'", HandleStatus.SUBMITTED, STARTED),
]
LATER = [Step("1:/run.json'", None, ENDED), Step("1:/held.json'", None, STARTED, queued=True)]


def killed(orch: Orch, tmp_path: Path, step: Step, *words: str) -> RunDir | None:
    """The run of a submit that was killed just after a step."""
    before = runs_of(orch)
    done = subprocess.run(
        [sys.executable, str(CRASH), str(tmp_path / "acts"), f"after:{step.act}", "alone", *orch.argv(*words)[3:]],
        env=orch.environment(), cwd=orch.cwd, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    (found,) = runs_of(orch) - before
    run = RunDir(orch.home / "runs" / found)
    if step.follows == NO_RUN:
        return None
    assert not is_being_started(run)
    assert (run.handle_status(), is_queued(run)) == (step.handle, step.queued)
    if step.handle is HandleStatus.INTENT:  # what the submit had begun would have shown itself by now
        moment = time.time() - SHOWS_ITSELF_SECONDS
        os.utime(run.path / "handle.json", (moment, moment))
    return run


def runs_of(orch: Orch) -> set[str]:
    return {path.name for path in (orch.home / "runs").glob("[!.]*")}


def what_follows(orch: Orch, run: RunDir) -> str:
    """Why the run has failed, or nothing if it was started; whoever looks next starts a supervisor."""
    assert orch("status").code == 0
    ended = orch("wait", run.run_id)
    verdict = orch("why", run.run_id, "--json").json
    assert (ended.code, verdict["outcome"]) in [(0, "succeeded"), (100, "failed")]
    assert len(orch.events(run, "agent_started")) == (ended.code == 0)
    assert wait_gone(marked(run.run_id), PATIENCE) == []
    return str(verdict["reason"])


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.act)
def test_a_run_whose_submit_is_killed_is_ended_or_started(
    orch: Orch, project: Callable[..., Path], tmp_path: Path, step: Step
) -> None:
    job = project(hello_yaml="command: [echo, hello]\n") / "hello.yaml"
    run = killed(orch, tmp_path, step, "submit", str(job), "-p", "local")
    if run is None:
        (folder,) = (orch.home / "runs").iterdir()
        assert "its record run.json is not there" in orch("why", folder.name).out
        os.utime(folder, (0, 0))  # gc leaves a folder alone that a submit may be about to use
        assert orch("gc").code == 0
        assert not folder.exists()
    else:
        assert what_follows(orch, run).startswith(step.follows)


@pytest.mark.parametrize("step", LATER, ids=lambda step: step.act)
def test_a_run_that_is_queued_is_started_though_its_submit_was_killed(
    orch: Orch, project: Callable[..., Path], tmp_path: Path, step: Step
) -> None:
    folder = project(first_yaml="command: [sleep, '600']\n", next_yaml="command: [echo, hello]\n")
    first = orch.submit(str(folder / "first.yaml"), "-p", "local")
    words = ("submit", str(folder / "next.yaml"), "-p", "local", "--after", f"{first.run_id}:any")
    run = killed(orch, tmp_path, step, *words)
    assert run is not None
    assert orch("cancel", first.run_id, "--now").code == 0
    assert what_follows(orch, run).startswith(step.follows)


@pytest.mark.parametrize("lost", [False, True])
def test_a_later_start_has_the_surroundings_of_its_submit_and_names_what_it_lacks(
    orch: Orch, project: Callable[..., Path], lost: bool
) -> None:
    """The supervisor was started from another shell; a limit above its own can't be restored without privileges."""
    folder = project(first_yaml="command: [sleep, '600']\n", next_yaml=f"command: [sh, -c, '{SHOW}']\n")
    first = orch.submit(str(folder / "first.yaml"), "-p", "local")
    words = orch.argv("submit", str(folder / "next.yaml"), "-p", "local", "--after", f"{first.run_id}:any", "--json")
    within = ["prlimit", "--nofile=64:64", "taskset", "--cpu-list", "0", "sh", "-c", 'umask 027; exec "$@"', "sh"]
    environment = orch.environment(COLOUR="green", SHAPE="round")
    done = subprocess.run([*within, *words], env=environment, cwd=orch.cwd, check=True, capture_output=True)
    run = orch.run(json.loads(done.stdout)["run_id"])
    if lost:
        held = run.read("held.json")
        assert held is not None
        run.write("held.json", {**held, "processors": [0, 4095], "cgroup": "/gone.scope"}, private=True)
    assert orch("cancel", first.run_id, "--now").code == 0
    assert orch("wait", run.run_id).code == 0
    assert (run.node(0) / "attempt_0/rank_0.log").read_text() == "green round 0027 64 0\n"
    said = [what for event in orch.events(run, "not_restored") for what in event["what"]]
    assert [each.partition(" instead")[0].partition(" is ")[0] for each in said] == (
        ["the processors 4095 can't be used", "the control group"] if lost else []
    )


SHOW = "echo $COLOUR $SHAPE $(umask) $(ulimit -n) $(grep Cpus_allowed_list /proc/self/status | cut -f2)"
