"""Where the ranks of a run stand now: by a signal where orch has started them, by py-spy elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.node.debug.py_spy import NotSeenError, dump, why_refused
from orchestrator.node.launcher.stacks import STACK_SIGNAL
from orchestrator.runs.store import RunDir
from tests.seccomp import refuse_ptrace
from tests.testbed.machine import wait_until

from .conftest import Orch

# Each rank says that it is there, and stands still: rank 1 apart from the others.
STAND = """
import os, signal, threading, time
def apart():
    print("there", flush=True)
    time.sleep(600)
def together():
    print("there", flush=True)
    time.sleep(600)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
(apart if os.environ["RANK"] == "1" else together)()
"""


def standing(orch: Orch, folder: Path, ranks: int, *options: str, **job: object) -> RunDir:
    """A run of two nodes whose ranks all stand still."""
    (folder / "stand.yaml").write_text(json.dumps(job))
    run = orch.submit(str(folder / "stand.yaml"), "-p", "local-2x2", *options)

    def there() -> bool:
        return sum(log.read_text().count("there") for log in run.path.glob("nodes/*/attempt_0/rank_*.log")) == ranks

    wait_until(there, f"{ranks} ranks of {run.run_id}")
    return run


@pytest.mark.parametrize("launcher", ["exec", "torchrun"])  # forked ranks: tests/cluster/test_debug.py
def test_equal_stacks_are_shown_once(orch: Orch, project: Callable[..., Path], launcher: str) -> None:
    if launcher == "torchrun":
        orch = orch.with_torch
    run = standing(orch, project(stand_py=STAND), 4, script="stand.py", launcher=launcher)
    done = orch("stacks", run.run_id)
    assert done.code == 0, done.err
    blocks = done.out.strip().split("\n\n")
    assert [block.partition(" (")[0] for block in blocks] == ["ranks 0, 2-3, nodes 0-1", "rank 1, node 0"]
    assert [[line.split()[-1] for line in block.splitlines()[1:]] for block in blocks] == [
        ["together", "<module>"], ["apart", "<module>"],
    ]  # fmt: skip
    assert all("stand.py:" in line for block in blocks for line in block.splitlines()[1:])
    told = orch("stacks", run.run_id, "--json").json
    assert [(each["rank"], each["node"], len(each["threads"])) for each in told["ranks"]] == [
        (0, 0, 2), (1, 0, 2), (2, 1, 2), (3, 1, 2),
    ]  # fmt: skip
    assert "thread 1:" in orch("stacks", run.run_id, "--threads").out
    orch("cancel", run.run_id, "--now")
    refused = orch("stacks", run.run_id)
    assert (refused.code, "has ended (cancelled)" in refused.err) == (2, True), refused.err


def test_no_signal_reaches_a_program_that_has_no_handler_and_what_can_not_be_seen_is_said(
    orch: Orch, project: Callable[..., Path]
) -> None:
    folder = project(stand_py=STAND)
    run = standing(orch, folder, 4, command=["sh", "-c", "echo there; exec sleep 600"], retry={"infra": 0})
    wait_until(lambda: len(orch.events(run, "launcher_started")) == 2, "the ranks' process ids")
    before = orch.events(run, "launcher_started")
    said = orch("stacks", run.run_id)
    assert (said.code, said.out.count("ranks 0-3, nodes 0-1")) == (1, 1), said.out
    assert "py-spy" in said.out
    pids = [pid for event in before for pid in event["pids"].values()]
    assert len(pids) == 4
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    os.kill(pids[0], STACK_SIGNAL)  # it would have
    wait_until(lambda: orch.events(run, "rank_exit"), "the end of a rank by that signal")
    orch("wait", run.run_id)


def test_the_program_of_an_exec_rank_finds_its_environment_as_it_was(orch: Orch, project: Callable[..., Path]) -> None:
    program = (
        "import json, os, sys, sitecustomize\n"
        "print(json.dumps([os.environ['PYTHONPATH'], os.environ.get('ORCH_EXEC_RANK'), sys.path[0], sys.argv,"
        " sitecustomize.OWN, [p for p in sys.path if 'launcher' in p]]))\n"
    )
    folder = project(stand_py=program)
    (folder / "own").mkdir()
    (folder / "own" / "sitecustomize.py").write_text("OWN = 'mine'\n")
    path = str(folder / "own")
    job = {"script": "stand.py", "launcher": "exec", "env": {"PYTHONPATH": path}}
    (folder / "stand.yaml").write_text(json.dumps(job))
    done = orch("submit", str(folder / "stand.yaml"), "-p", "local", "--nproc-per-node", "1", "-f")
    assert done.code == 0, done.err
    run = orch.run().path
    assert json.loads(done.out.splitlines()[0]) == [
        f"{run}/node.pyz:{path}", None, f"{run}/code", ["stand.py"], "mine", [],
    ]  # fmt: skip


# -- what refuses ptrace


@pytest.mark.parametrize(
    ("owner", "me", "capabilities", "scope", "said"),
    [
        (99123, 1001, ~0, "0", "it runs as user 99123: only that user or root"),
        (1000, 0, ~0, "0", ""),
        (1000, 1000, ~0, "0", ""),
        (1000, 1000, ~0, "1", "kernel.yama.ptrace_scope is 1 on this machine: only a parent may"),
        (1000, 1000, ~0, "2", "kernel.yama.ptrace_scope is 2 on this machine: only root may"),
        (1000, 1000, ~0, "3", "nobody may look into a process until the next boot"),
        (1000, 1000, ~(1 << 19), "0", "this container has no SYS_PTRACE: start it with --cap-add SYS_PTRACE"),
    ],
)
def test_which_setting_refuses(owner: int, me: int, capabilities: int, scope: str, said: str) -> None:
    found = why_refused(owner, me, capabilities, scope)
    assert said in found
    assert bool(found) == bool(said)


def test_a_kernel_that_refuses_ptrace_is_named() -> None:
    """The kernel itself refuses it, by a filter of system calls, as a container's does."""
    target = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    told: list[str] = []

    def refused() -> None:
        refuse_ptrace()  # of this thread, and what it starts
        with pytest.raises(NotSeenError) as error:
            dump(target.pid)
        told.append(str(error.value))

    thread = threading.Thread(target=refused)
    thread.start()
    thread.join()
    target.communicate(b"\n")
    assert "trace the process (ptrace)" in told[0] or "SYS_PTRACE" in told[0], told
