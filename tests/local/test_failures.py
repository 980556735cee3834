"""Ranks, launchers and agents that end as they should not: who is blamed, and that nothing stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.looking.run import wait
from orchestrator.looking.state import state_of
from orchestrator.node.system import processes
from orchestrator.node.system.processes import Process, ancestors, identify, is_alive, marked, send_signal, wait_gone
from orchestrator.runs.store import RunDir
from orchestrator.supervisor.reconcile import reconcile
from tests.cluster.lab import HELD_AT_FIRST
from tests.patience import PATIENCE
from tests.testbed.machine import wait_until

from .conftest import WARM, Orch
from .programs.ranks import PROGRAMS
from .test_runs import SLOW, wait_for_line

SUSPENDED = 11.0  # seconds: more than the silence between nodes that the job below bears

# In each attempt rank 2 (on the second of two nodes) fails in another way while all the others are in a collective.
# What looks like a checkpoint says that the attempts get on.
COLLECTIVE = """
import os, signal, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, attempt = dist.get_rank(), int(os.environ["ORCH_ATTEMPT"])
how = sys.argv[1 + attempt]
if rank == 0:
    os.makedirs(f"{os.environ['ORCH_CHECKPOINT_DIR']}/step_{attempt + 1:08}")
    open(f"{os.environ['ORCH_CHECKPOINT_DIR']}/step_{attempt + 1:08}/COMMIT", "w").close()
for step in range(100_000):
    dist.all_reduce(torch.ones(1))
    if step == 50 and rank == 2:
        print("rank 2 is about to fail by", how, flush=True)
        if how == "exit":
            os._exit(17)
        if how == "leave":
            os._exit(0)
        if how == "raise":
            raise ValueError("boom at step 50")
        if how == "no_retry":
            sys.exit(93)
        os.kill(os.getpid(), getattr(signal, how))
"""


def test_the_culprit_is_named_and_not_its_victims_and_exit_93_is_not_started_again(orch: Orch, project) -> None:
    orch = orch.with_torch
    ways = {"exit": (17, None), "raise": (1, None), "SIGKILL": (None, "SIGKILL"), "SIGSEGV": (None, "SIGSEGV"),
            "no_retry": (93, None)}  # fmt: skip
    job = {"script": "fail.py", "args": list(ways), "retry": {"user_error": 9, "infra": 9}}
    folder = project(fail_py=COLLECTIVE, fail_yaml=json.dumps(job))
    done = orch("submit", str(folder / "fail.yaml"), "-p", "local-2x2", "-f")
    assert done.code == 100, done.err
    run = orch.run()
    failed = orch.events(run, "attempt_failed")
    assert len(failed) == len(ways)
    for event, (how, (code, name)) in zip(failed, ways.items(), strict=True):
        culprit = event["culprit"]
        assert (culprit["rank"], culprit["node"], culprit["code"], culprit["signal"]) == (2, 1, code, name), culprit
        assert f"rank 2 is about to fail by {how}" in culprit["tail"]
    error = failed[1]["culprit"]["error"]
    assert error["type"] == "ValueError"
    assert 'raise ValueError("boom at step 50")' in error["traceback"]
    assert "orchestrator/node" not in error["traceback"]
    assert failed[1]["cause"] == "user_error"
    state = orch("status", "last", "--json").json
    assert (state["restarts"], state["verdict"]["cause"], state["verdict"]["rank"]) == (4, "no_retry", 2)
    assert "exit code 93" in orch("why", "last").out
    assert wait_gone(marked(run.run_id), PATIENCE) == []


# Appended to a task: rank 1 is killed in the first attempt.
KILLED = """
_loss, _calls = loss, []

def loss(outputs, targets):
    _calls.append(1)
    if len(_calls) == 25 and os.environ["RANK"] == "1" and os.environ["ORCH_ATTEMPT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    return _loss(outputs, targets)
"""


def test_a_killed_rank_is_restarted_from_the_checkpoint(orch: Orch, project) -> None:
    """The gang starts again on a fresh port, goes on where it was, and ends as if nothing had happened."""
    training = "training: {task: small.py, steps: 40, save_every: 5, log_every: 5, global_batch: 12}\n"
    job = f"{training}{WARM}retry: {{infra: 1}}\n"
    folder = project(small_py=(PROGRAMS / "small.py").read_text() + KILLED, small_yaml=job)
    done = orch.with_torch("submit", str(folder / "small.yaml"), "-p", "local-2x2", "-f")
    assert done.code == 0, done.err
    run = orch.run()
    first, second = orch.events(run, "go")
    assert first["master_port"] != second["master_port"]
    restart = orch.events(run, "restart")[0]
    assert (restart["attempt"], restart["cause"]) == (1, "infra")
    assert restart["from_step"] >= 15
    assert "attempt 1" in done.out
    steps = [json.loads(line)["step"] for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert max(steps) == 40


def test_no_progress_ends_the_run(orch: Orch, project) -> None:
    folder = project(die_py="import os\nos.kill(os.getpid(), 9)\n", die_yaml="script: die.py\nretry: {infra: 50}\n")
    assert orch("submit", str(folder / "die.yaml"), "-p", "local", "-f").code == 100
    state = orch("status", "last", "--json").json
    assert (state["verdict"]["cause"], state["attempt"]) == ("no_progress", 2)


# Saves as an ordinary script does, and is killed after each save; the sixth one is the last.
SAVING = """
import json, os, pathlib, sys, zipfile
layout, attempt = sys.argv[1], int(os.environ["ORCH_ATTEMPT"])
if layout == "trainer":
    folder = pathlib.Path("outputs", f"checkpoint-{(attempt + 1) * 100}")
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": (attempt + 1) * 100}))
    weights = folder / "optimizer.pt"
else:
    weights = pathlib.Path("model.pt")
with zipfile.ZipFile(weights, "w") as file:
    file.writestr("weights", str(attempt))
if attempt < 5:
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("layout", ["trainer", "one-file"])
def test_a_script_with_checkpoints_of_its_own_goes_on(orch: Orch, project, layout: str) -> None:
    job = f"script: save.py\nargs: [{layout}]\nretry: {{infra: 50}}\n"
    folder = project(save_py=SAVING, save_yaml=job)
    assert orch("submit", str(folder / "save.yaml"), "-p", "local", "--nproc-per-node", "1", "-f").code == 0
    assert orch("status", "last", "--json").json["attempt"] == 5


def agent_of(run: RunDir, node: int) -> Process:
    found = identify(json.loads((run.node(node) / "agent.json").read_text())["pid"])
    assert found is not None
    return found


def test_a_rank_that_leaves_the_others_in_a_collective_is_blamed_and_nothing_is_tried_again(
    orch: Orch, project
) -> None:
    folder = project(fail_py=COLLECTIVE, fail_yaml="script: fail.py\nargs: [leave]\nretry: {infra: 3}\n")
    assert orch.with_torch("submit", str(folder / "fail.yaml"), "-p", "local-2x2", "-f").code == 100
    verdict = orch("why", "last", "--json").json
    assert (verdict["rank"], verdict["node"], verdict["code"], verdict["cause"]) == (2, 1, 0, "user_error")
    assert "ended with exit code 0 while rank" in verdict["reason"]
    assert orch("status", "last", "--json").json["restarts"] == 0


def test_a_rank_that_dies_while_it_exits_does_not_make_all_train_again(orch: Orch, project) -> None:
    program = (
        "import os, signal\n"
        "if os.environ['RANK'] == '1':\n"
        "    class Aborts:\n"
        "        def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGABRT): kill(pid, number)\n"
        "    left = Aborts()\n"
        "print('trained', flush=True)\n"
    )
    folder = project(end_py=program, end_yaml="script: end.py\nlauncher: exec\nretry: {infra: 3, user_error: 3}\n")
    assert orch("submit", str(folder / "end.yaml"), "-p", "local", "-f").code == 100
    verdict = orch("why", "last", "--json").json
    assert (verdict["rank"], verdict["signal"], verdict["cause"]) == (1, "SIGABRT", "no_retry")
    assert "while it exited; the programs of all ranks had ended" in verdict["reason"]
    assert "destroy_process_group" in verdict["hint"]
    assert orch("status", "last", "--json").json["restarts"] == 0


def launcher_of(run: RunDir, node: int) -> Process:
    """The parent of the node's first rank."""

    def started() -> list[dict[str, int]]:
        return [e["pids"] for e in run.event_lines() if e["kind"] == "launcher_started" and e["node"] == node]

    wait_until(started, "the ranks' process ids")  # a rank may speak before its agent has heard of it
    stat = Path(f"/proc/{next(iter(started()[-1].values()))}/stat").read_text()
    found = identify(int(stat.rpartition(")")[2].split()[1]))
    assert found is not None
    return found


@pytest.mark.parametrize("victim", ["agent 0", "agent 1", "launcher 0", "both 1", "all"])
def test_kill_9_leaves_no_rank(orch: Orch, project, victim: str) -> None:
    folder = project(
        slow_py="import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('is up', flush=True)\n"
        "time.sleep(600)\n",
        slow_yaml="script: slow.py\nretry: {infra: 0}\n",
    )  # fmt: skip
    run = orch.submit(str(folder / "slow.yaml"), "-p", "local-2x2")
    for rank in range(4):
        wait_for_line(run, "is up", rank)
    wait_until(lambda: len(orch.events(run, "launcher_started")) == 2, "the ranks' process ids")
    what, _, node = victim.partition(" ")
    nodes = [int(node)] if node else [0, 1]
    targets = [agent_of(run, n) for n in nodes if what in ("agent", "both", "all")]
    targets += [launcher_of(run, n) for n in nodes if what in ("launcher", "both", "all")]
    everything = marked(run.run_id)
    for process in targets:
        send_signal(process, signal.SIGKILL)  # a launcher may have ended with its agent
    state = wait(run, timeout=PATIENCE)
    assert state.state == "failed"
    assert wait_gone(everything, PATIENCE) == []
    reconcile(orch.home, run)
    assert marked(run.run_id) == []
    verdict = state_of(run).verdict
    assert verdict is not None
    expected = {"agent": "was lost" if node == "1" else "vanished", "launcher": "killed by SIGKILL",
                "both": "was lost", "all": "vanished"}[what]  # fmt: skip
    assert expected in verdict.reason, verdict.reason


def test_a_launcher_whose_death_is_heard_of_late_is_blamed_and_no_rank_that_lost_its_connection(
    orch: Orch, project
) -> None:
    """Its agent is stopped meanwhile, so the other node's ranks report their broken connections first."""
    job = {"script": "steps.py", "args": ["16", "0.05"], "launcher": "exec"}
    folder = project(steps_py=HELD_AT_FIRST, steps_yaml=json.dumps(job))
    run = orch.submit(str(folder / "steps.yaml"), "-p", "local-2x2")
    for rank in range(4):
        wait_for_line(run, f"rank {rank} begins at 0", rank)
    agent, launcher = agent_of(run, 1), launcher_of(run, 1)
    send_signal(agent, signal.SIGSTOP)
    send_signal(launcher, signal.SIGKILL)
    wait_until(lambda: orch.events(run, "rank_exit"), "the end of a rank of node 0")
    send_signal(agent, signal.SIGCONT)
    assert wait(run, timeout=PATIENCE).state == "succeeded"
    (failed,) = orch.events(run, "attempt_failed")
    assert (failed["cause"], failed["culprit"]["node"]) == ("infra", 1), failed
    assert failed["culprit"]["error"]["type"] == "LauncherLost"


ESCAPE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        sys.stdout.flush()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        time.sleep(600)
    os._exit(0)
os.wait()
print("escaped", flush=True)
time.sleep(float(sys.argv[1]))
"""


def test_a_double_forked_daemon_is_swept_at_the_end(orch: Orch, project) -> None:
    folder = project(escape_py=ESCAPE, escape_yaml="script: escape.py\nargs: ['0']\n")
    assert orch("submit", str(folder / "escape.yaml"), "-p", "local", "-f").code == 0
    run = orch.run()
    assert sum(event["killed"] for event in orch.events(run, "swept") if "killed" in event) == 2
    assert marked(run.run_id) == []


def test_an_unrelated_process_is_never_touched(orch: Orch, project) -> None:
    import subprocess
    import sys

    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # same name, no mark
    try:
        before = identify(bystander.pid)
        assert before is not None
        folder = project(slow_py=SLOW, slow_yaml="script: slow.py\n")
        run = orch.submit(str(folder / "slow.yaml"), "-p", "local")
        wait_for_line(run, "is up")
        assert orch("cancel", run.run_id, "--now").code == 0
        assert is_alive(before)
    finally:
        bystander.kill()
        bystander.wait()


def test_a_node_that_can_not_start_its_launcher_is_named(orch: Orch, project) -> None:
    folder = project(place_yaml="kind: local\nnodes: 2\nnproc_per_node: 1\npython: /nonexistent/python\n")
    done = orch.with_torch("submit", "hello", "-p", str(folder / "place.yaml"), "-f")
    assert done.code == 100
    assert "/nonexistent/python" in done.err


def test_an_import_that_fails_is_named_before_any_rank_starts(orch: Orch, project) -> None:
    folder = project(warm_py="", warm_yaml="script: warm.py\nwarm_imports: [no_such_module]\n")
    done = orch("submit", str(folder / "warm.yaml"), "-p", "local", "-f")
    assert done.code == 100
    assert "the module no_such_module is missing on" in done.err
    assert orch.events(orch.run(), "started") == []


def test_a_module_that_no_node_has_is_looked_for_on_all_of_them(orch: Orch, project) -> None:
    place = "kind: local\nnodes: 2\nnproc_per_node: 1\n"
    folder = project(
        lacks_py="import no_such_module\n", lacks_yaml="script: lacks.py\nlauncher: exec\n", place_yaml=place
    )
    done = orch("submit", str(folder / "lacks.yaml"), "-p", str(folder / "place.yaml"), "-f")
    assert done.code == 100
    assert "; the module no_such_module is missing on" in done.err
    assert ", and not on the other" not in done.err
    assert "; python there: /" in done.err
    assert "orch doctor -p place" in done.err


def test_a_module_above_the_code_folder_is_named_with_its_place(orch: Orch, project) -> None:
    folder = project(helpers_py="", place_yaml="kind: local\nnproc_per_node: 1\n")
    (folder / "tools").mkdir()
    (folder / "tools" / "train.py").write_text("import helpers\n")
    (folder / "tools" / "job.yaml").write_text("script: train.py\nlauncher: exec\n")
    done = orch("submit", str(folder / "tools" / "job.yaml"), "-p", str(folder / "place.yaml"), "-f")
    assert done.code == 100
    said = f"helpers is in {folder}, outside the code folder {folder / 'tools'}, so it was not sent"
    assert said in orch("why", "last").out


def test_an_interface_that_is_not_there_is_named_before_any_rank_starts(orch: Orch, project) -> None:
    folder = project(place_yaml="kind: local\nnodes: 2\nnproc_per_node: 1\ninterface: eth9\n")
    done = orch("submit", "hello", "-p", str(folder / "place.yaml"), "-f")
    assert done.code == 100
    assert "it has no network interface eth9, which the profile names; its interfaces: lo" in done.err
    assert orch.events(orch.run(), "started") == []


def test_a_node_that_is_never_ready_is_named_and_leaves(orch: Orch, project) -> None:
    """Its input comes from a pipe that nobody writes to; not even that keeps an agent from leaving."""
    folder = project(place_yaml="kind: local\nnodes: 2\nnproc_per_node: 1\n")
    os.mkfifo(folder / "pipe")
    (folder / "job.yaml").write_text(
        f"command: ['true']\nlimits: {{join: 10s}}\ncode: {{dir: empty}}\n"
        f"inputs: [{{name: DATA, source: {folder / 'pipe'}, sha256: '{'0' * 64}'}}]\n"
    )
    (folder / "empty").mkdir()
    run = orch.submit(str(folder / "job.yaml"), "-p", str(folder / "place.yaml"))
    state = wait(run, timeout=PATIENCE)
    assert state.verdict is not None
    assert "did not get its launcher ready within 10 s" in state.verdict.reason
    assert "node 0 (" in state.verdict.reason


def test_a_time_limit_stops_at_a_boundary(orch: Orch, project) -> None:
    folder = project(slow_py=SLOW, slow_yaml="script: slow.py\nlauncher: exec\nresources: {time: 15s}\n")
    done = orch("submit", str(folder / "slow.yaml"), "-p", "local", "-f")
    assert done.code == 100
    assert "time limit" in done.err
    run = orch.run()
    assert {e["code"] for e in orch.events(run, "rank_exit")} == {95}
    assert state_of(run).verdict.cause == "timeout"  # type: ignore[union-attr]


def test_term_to_an_agent_is_a_preemption_with_a_checkpoint(orch: Orch, project) -> None:
    folder = project(slow_py=SLOW, slow_yaml="script: slow.py\n")
    run = orch.submit(str(folder / "slow.yaml"), "-p", "local-2x2")
    for rank in range(4):  # one that does not catch TERM yet dies of it, without a checkpoint
        wait_for_line(run, "is up", rank)
    os.kill(agent_of(run, 1).pid, signal.SIGTERM)
    state = wait(run, timeout=PATIENCE)
    assert state.verdict is not None
    assert (state.state, state.verdict.cause) == ("failed", "preempted")
    assert {e["code"] for e in orch.events(run, "rank_exit")} == {95}
    assert {e["code"] for e in orch.events(run, "agent_ended")} == {95}


def test_a_lost_launcher_is_started_again(orch: Orch, project) -> None:
    wait_or_end = SLOW.replace(
        "time.monotonic() + 600", "time.monotonic() + (600 if os.environ['ORCH_ATTEMPT'] == '0' else 9)"
    )
    folder = project(slow_py=wait_or_end, slow_yaml="script: slow.py\nretry: {infra: 1}\n")
    run = orch.submit(str(folder / "slow.yaml"), "-p", "local-2x2")
    for rank in range(4):
        wait_for_line(run, "is up", rank)
    os.kill(launcher_of(run, 1).pid, signal.SIGKILL)
    state = wait(run, timeout=PATIENCE)
    assert state.state == "succeeded", (
        state.verdict
    )  # also when the second attempt outlives every deadline of the first
    assert state.restarts == 1


@pytest.mark.parametrize("reaped", [True, False])
def test_a_launcher_that_dies_after_its_ranks_exits_takes_nothing_back(
    orch: Orch, project, tmp_path: Path, reaped: bool
) -> None:
    """Node 0's launcher is killed when its ranks have ended, and those of node 1 have not: also while it is stopped."""
    folder = project(
        two_yaml="script: two.py\nwarm_imports: []\nlauncher: exec\nretry: {infra: 1}\n",
        two_py="import os, time\nprint('is up', flush=True)\n"
        'while not os.path.exists(f\'{os.environ["GATES"]}/{os.environ["GROUP_RANK"]}\'):\n    time.sleep(0.05)\n',
    )
    run = orch.submit(str(folder / "two.yaml"), "-p", "local-2x2", "--env", f"GATES={tmp_path}")
    for rank in range(4):
        wait_for_line(run, "is up", rank)
    launcher = launcher_of(run, 0)
    pids = next(e["pids"] for e in run.event_lines() if e["kind"] == "launcher_started" and e["node"] == 0).values()
    if not reaped:
        os.kill(launcher.pid, signal.SIGSTOP)
    (tmp_path / "0").touch()
    wait_until(lambda: {processes.state_of(pid) for pid in pids} <= {"?", "Z"}, "the end of node 0's ranks")
    if reaped:
        wait_until(lambda: len(orch.events(run, "rank_exit")) == 2, "the exits")
    os.kill(launcher.pid, signal.SIGKILL)
    wait_until(lambda: bool(orch.events(run, "launcher_gone") or orch.events(run, "trouble")), "the launcher's end")
    (tmp_path / "1").touch()
    state = wait(run, timeout=PATIENCE)
    assert (state.state, state.restarts) == ("succeeded", 0), state.verdict


BLOCKS_THE_NEXT_ATTEMPT = """
import os, signal, time
from pathlib import Path
print("is up", flush=True)
if os.environ["RANK"] == "2":
    Path(os.environ["ORCH_BEAT_FILE"]).parents[1].joinpath("attempt_1").touch()
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


def test_a_node_that_has_no_room_for_another_attempt_is_named_with_the_reason(orch: Orch, project) -> None:
    folder = project(block_py=BLOCKS_THE_NEXT_ATTEMPT, block_yaml="script: block.py\nretry: {infra: 3}\n")
    assert orch("submit", str(folder / "block.yaml"), "-p", "local-2x2", "-f").code == 100
    verdict = orch("why", "last", "--json").json
    assert verdict["cause"] == "infra"
    assert verdict["reason"].startswith("node 1 (")
    assert verdict["reason"].endswith("/nodes/1/attempt_1 can't be created: File exists")


def test_a_launcher_that_may_open_no_more_files_is_named_with_the_reason(orch: Orch, project) -> None:
    folder = project(many_yaml="command: [sleep, '600']\nwarm_imports: []\nretry: {infra: 0}\n")
    (folder / "tight.yaml").write_text("kind: local\nnproc_per_node: 16\nsetup: ['ulimit -n 24']\n")
    assert orch("submit", str(folder / "many.yaml"), "-p", str(folder / "tight.yaml"), "-f").code == 100
    verdict = orch("why", "last", "--json").json
    assert verdict["cause"] == "infra"
    assert "the ranks can't be started: Too many open files" in verdict["reason"]
    assert "ulimit -n" in verdict["hint"]


OF_NODE_0 = pytest.mark.full(
    "tests/local/test_failures.py::test_a_frozen_agent_does_not_keep_a_run_open",
    "tests/unit/node/agent/test_leader.py::test_the_node_that_left_a_frozen_leader_is_not_blamed",
)


@pytest.mark.parametrize("node", [pytest.param(0, marks=OF_NODE_0), 1])
def test_a_frozen_agent_does_not_keep_a_run_open(orch: Orch, project, node: int) -> None:
    folder = project(slow_py=SLOW, slow_yaml="script: slow.py\nretry: {infra: 0}\nlimits: {link: 8, grace: 5}\n")
    run = orch.submit(str(folder / "slow.yaml"), "-p", "local-2x2")
    wait_for_line(run, "is up", 3)
    frozen = agent_of(run, node)
    os.kill(frozen.pid, signal.SIGSTOP)
    state = wait(run, timeout=PATIENCE)
    assert state.verdict is not None
    assert "no heartbeat for" in state.verdict.reason
    assert ("node 1 lost node 0" if node == 0 else "node 1 (") in state.verdict.reason
    assert wait_gone([frozen], PATIENCE) == []


def test_a_frozen_launcher_is_ended_and_the_gang_starts_again(orch: Orch, project) -> None:
    program = "import os, time\nprint('is up', flush=True)\nwhile os.environ['ORCH_ATTEMPT'] == '0': time.sleep(0.02)\n"
    folder = project(slow_py=program, slow_yaml="script: slow.py\nretry: {infra: 1}\nlimits: {link: 8}\n")
    run = orch.submit(str(folder / "slow.yaml"), "-p", "local-2x2")
    wait_for_line(run, "is up", 3)
    agent = agent_of(run, 1)
    (launcher,) = [each.pid for each in marked(run.run_id, 1) if ancestors(each.pid)[0] == agent.pid]
    os.kill(launcher, signal.SIGSTOP)
    state = wait(run, timeout=PATIENCE)
    assert (state.state, state.restarts) == ("succeeded", 1), state.verdict
    assert [event["reason"].rpartition(" for ")[0] for event in orch.events(run, "launcher_killed")] == [
        "was stopped (SIGSTOP)"
    ]
    said = [event["error"]["message"] for event in orch.events(run, "rank_exit") if event.get("error")]
    assert "the launcher of this node was stopped (SIGSTOP) for" in said[0]


@pytest.mark.full(
    "tests/unit/node/agent/test_leader.py::test_a_leader_that_did_not_run_itself_holds_its_sleep_against_nobody",
)
def test_a_run_that_was_suspended_as_a_whole_goes_on_as_if_nothing_had_been(orch: Orch, project) -> None:
    program = """
import os, sys, time
print("is up", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""
    folder = project(slow_py=program)
    (folder / "slow.yaml").write_text(
        f"script: slow.py\nargs: [{folder}/go]\nretry: {{infra: 0}}\nlimits: {{link: 8}}\n"
    )
    run = orch.submit(str(folder / "slow.yaml"), "-p", "local-2x2")
    for rank in range(4):
        wait_for_line(run, "is up", rank)
    pids = [process.pid for process in marked(run.run_id)] + [agent_of(run, node).pid for node in (0, 1)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(SUSPENDED)  # that nothing runs for so long is what is tested
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    (folder / "go").touch()
    state = wait(run, timeout=PATIENCE)
    assert (state.state, state.restarts) == ("succeeded", 0), state.verdict
    assert orch.events(run, "lost_node") == []
    assert max(event["seconds"] for event in orch.events(run, "slept")) > SUSPENDED - 1


def test_a_process_that_threw_its_mark_away_is_ended_too(orch: Orch, project) -> None:
    inner = ': > "$0"; exec sleep 601.5'
    outer = f"env -i setsid sh -c '{inner}' \"$PWD/up.$RANK\" & until [ -e up.$RANK ]; do sleep 0.02; done"
    folder = project(bare_yaml=json.dumps({"command": ["sh", "-c", outer]}))
    assert orch("submit", str(folder / "bare.yaml"), "-p", "local", "-f").code == 0
    swept = [event["swept"] for event in orch.events(orch.run(), "agent_ended")]
    assert swept == [2]


def test_one_rank_that_asks_for_a_requeue_stops_them_all(orch: Orch, project) -> None:
    folder = project(slow_py=SLOW, slow_yaml="script: slow.py\n")
    run = orch.submit(str(folder / "slow.yaml"), "-p", "local-2x2")
    for rank in range(4):
        wait_for_line(run, "is up", rank)
    wait_until(lambda: len(orch.events(run, "launcher_started")) == 2, "the ranks' process ids")
    pids = [e["pids"] for e in run.event_lines() if e["kind"] == "launcher_started" and e["node"] == 1][-1]
    os.kill(pids["2"], signal.SIGTERM)
    state = wait(run, timeout=PATIENCE)
    assert state.verdict is not None
    assert state.verdict.cause == "preempted"
    assert [e["code"] for e in orch.events(run, "rank_exit")] == [95] * 4


DIES_BETWEEN_AGENTS = """
import os, sys
from orchestrator import cli
from orchestrator.node.server import machine

start = machine._start

def only_one(task, *rest):
    if task.node_rank == 1:
        os._exit(9)
    return start(task, *rest)

machine._start = only_one
sys.exit(cli.main())
"""


def test_a_submit_killed_between_two_agents_is_named_at_once_by_the_next_command(orch: Orch, project) -> None:
    folder = project(hold_py="import time\ntime.sleep(600)\n", hold_yaml="script: hold.py\n")
    argv = [sys.executable, "-c", DIES_BETWEEN_AGENTS, "submit", str(folder / "hold.yaml"), "-p", "local-2x2"]
    assert subprocess.run(argv, cwd=orch.cwd, env=orch.environment(), check=False).returncode == 9
    assert orch("status").code == 0  # nobody looked after the run: this starts a supervisor
    assert orch("wait", "last").code == 100
    verdict = orch("why", "last", "--json").json
    assert verdict["reason"] == "orch submit ended before it had started 1 of 2 agents"
    assert wait_gone(marked(orch.run().run_id), PATIENCE) == []  # what the dead submit had started ends by itself
