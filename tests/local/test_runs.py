"""From a job file to an ended run, through the command line, on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from orchestrator.looking.run import wait
from orchestrator.looking.state import state_of
from orchestrator.node.system.processes import marked
from orchestrator.runs.store import RunDir
from tests.patience import PATIENCE
from tests.testbed.machine import wait_until

from .conftest import WARM_DIGITS, Orch, files_with

SLOW = """
import os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
print("rank", os.environ["RANK"], "is up", flush=True)  # who reads it may send TERM
end = time.monotonic() + 600
while not stop and time.monotonic() < end:
    time.sleep(0.02)
sys.exit(95 if stop else 0)
"""


def wait_for_line(run: RunDir, text: str, rank: int = 0) -> None:
    """Return once the rank's log holds the text; fail if that never happens."""

    def look(state: object) -> None:
        if any(text in path.read_text() for path in run.path.glob(f"nodes/*/attempt_*/rank_{rank}.log")):
            raise StopIteration

    with pytest.raises(StopIteration):
        wait(run, look, timeout=PATIENCE)


def test_hello_on_two_nodes(orch: Orch) -> None:
    done = orch("submit", "hello", "-p", "local-2x2", "--follow")
    assert done.code == 0
    assert done.out.startswith("hello from rank 0 of 4 on ")
    said = orch("logs", "last", "--all").out.splitlines()
    assert [line.split(" on ")[0] for line in said] == [
        f"n{rank // 2}/r{rank} hello from rank {rank} of 4" for rank in range(4)
    ]
    state = orch("status", "last", "--json").json
    assert (state["state"], state["world_size"], len(state["nodes"])) == ("succeeded", 4, 2)


SAY = """
import os, sys
assert open("train.bin").read() == "of mine"
os.makedirs("../results", exist_ok=True)
open("../results/out.txt", "w").close()
print(os.environ['RANK'], *sys.argv[1:])
"""


def test_a_script_runs_without_a_job_file_and_is_repeated(orch: Orch, tmp_path: Path) -> None:
    folder = tmp_path / "proj"
    folder.mkdir()
    (folder / "say.py").write_text(SAY)
    (folder / ".gitignore").write_text("*.bin\n")
    (folder / "train.bin").write_text("of mine")
    done = orch("run", "--nodes", "2", "--", "torchrun", "--nproc_per_node", "2", "say.py", "--lr", "1e-3", cwd=folder)
    assert (done.code, done.out) == (0, "0 --lr 1e-3\n")
    assert done.err.startswith("4 ranks on 2 nodes of profile local (none is named")
    assert done.err.splitlines()[-1].endswith("--in-place")
    placed = orch("pull", "last", "--in-place", cwd=tmp_path)
    assert (placed.code, placed.out) == (0, f"copied {tmp_path}/results/out.txt\n")
    assert re.search(r"^python /.+ \(", done.err, re.MULTILINE)
    assert [each["path"] for each in orch("outputs", "last", "--json").json["files"]] == ["beside/results/out.txt"]
    assert orch("status", "last", "--json").json["world_size"] == 4
    again = orch("submit", "--from", "last", "--follow", "--", "--lr", "2", "--follow", cwd=tmp_path)
    assert (again.code, again.out) == (0, "0 --lr 1e-3 --lr 2 --follow\n")
    plan = orch("plan", "digits_ddp", "-p", "local", "--json", "--set", "lr=0.5", "--", "--eval-every", "7").json
    assert "--lr 0.5" in " ".join(plan["ranks"]["argv"])
    assert plan["ranks"]["argv"][-2:] == ["--eval-every", "7"]


def test_digits_train_on_two_nodes_and_the_dry_run_was_the_run(orch: Orch) -> None:
    run = orch.with_torch.submit("digits_ddp", "-p", "local-2x2", "--set", "job.training.epochs=8", *WARM_DIGITS)
    state = wait(run, timeout=PATIENCE)
    assert state.state == "succeeded", state.verdict
    result = json.loads((run.path / "result.json").read_text())
    assert result["accuracy"] > 0.8
    assert result["world_size"] == 4
    assert list(run.path.glob("checkpoints/step_*/COMMIT"))
    assert (run.path / "metrics.jsonl").read_text().count("\n") > 1
    started = orch.events(run, "started")
    assert [event["ranks"] for event in started] == [[0, 2], [2, 4]]
    assert {event["master_port"] for event in started} == {started[0]["master_port"]}


def test_events_are_followed_to_the_end_of_the_run(orch: Orch, project) -> None:
    folder = project(slow_yaml="command: [sh, -c, 'while [ ! -e go ]; do sleep 0.05; done']\n")
    run = orch.submit(str(folder / "slow.yaml"), "-p", "local-2x2")
    with subprocess.Popen(
        orch.argv("events", run.run_id, "--follow", "--json"), stdout=subprocess.PIPE, text=True, cwd=orch.cwd,
        env=orch.environment(),
    ) as following:  # fmt: skip
        assert following.stdout is not None
        kinds = list[str]()
        for line in following.stdout:
            kinds.append(json.loads(line)["kind"])
            if kinds.count("launcher_started") == 2:
                (run.path / "code" / "go").touch()
    assert following.returncode == 0
    assert kinds.count("launcher_started") == 2
    assert kinds.count("agent_ended") == 2


def test_a_rehearsal_keeps_the_profiles_shape(orch: Orch) -> None:
    done = orch("submit", "hello", "-p", "slurm-3x4", "--rehearse", "-f")
    assert done.code == 0, done.err
    state = orch("status", "last", "--json").json
    assert state["world_size"] == 12
    assert [node["ranks"] for node in state["nodes"]] == [[0, 4], [4, 8], [8, 12]]
    assert state["profile"] == "slurm-3x4 (rehearsal)"


def test_nodes_may_differ_in_nproc(orch: Orch, project) -> None:
    folder = project(
        odd_yaml="kind: local\nnodes: 3\nnproc_per_node: [1, 3, 2]\n",
        who_yaml="command: [sh, -c, 'echo \"$RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $WORLD_SIZE $GROUP_RANK\"']\n",
    )
    assert orch("submit", str(folder / "who.yaml"), "-p", str(folder / "odd.yaml"), "-f").code == 0
    said = [line.split(" ", 1)[1] for line in orch("logs", "last", "--all").out.splitlines()]
    assert said == ["0 0 1 6 0", "1 0 3 6 1", "2 1 3 6 1", "3 2 3 6 1", "4 0 2 6 2", "5 1 2 6 2"]


def test_the_agents_are_started_by_the_plans_own_commands(orch: Orch, project) -> None:
    folder = project(slow_py=SLOW, slow_yaml="script: slow.py\n")
    run = orch.submit(str(folder / "slow.yaml"), "-p", "local-2x2")
    wait_for_line(run, "is up")
    planned = json.loads((run.path / "plan.json").read_text())["commands"]
    for node, argv in enumerate(planned):
        pid = json.loads((run.node(node) / "agent.json").read_text())["pid"]
        assert Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode().split("\0") == argv
    shown = orch("submit", str(folder / "slow.yaml"), "-p", "local-2x2", "--dry-run").out
    assert all(" ".join(argv[:3]) in shown for argv in planned)
    assert f"{argv[3].replace(run.run_id, 'slow-dryrun')} agent" in shown


def test_cancel_stops_at_a_boundary_and_proves_it(orch: Orch, project) -> None:
    folder = project(slow_py=SLOW, slow_yaml="script: slow.py\n")
    run = orch.submit(str(folder / "slow.yaml"), "-p", "local-2x2")
    for rank in range(4):
        wait_for_line(run, "is up", rank)
    done = orch("cancel", run.run_id[: len("slow-") + 3])
    assert done.code == 0
    assert "0 processes left" in done.err
    exits = orch.events(run, "rank_exit")
    assert [e["code"] for e in exits] == [95] * 4, exits
    assert orch("wait", run.run_id).code == 103
    assert "already finished (cancelled)" in orch("cancel", run.run_id).err
    assert marked(run.run_id) == []


def test_cancel_now_kills_a_rank_that_ignores_term(orch: Orch, project) -> None:
    stubborn = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\n"
    folder = project(deaf_py=stubborn + "time.sleep(600)\n", deaf_yaml="script: deaf.py\n")
    run = orch.submit(str(folder / "deaf.yaml"), "-p", "local")
    for rank in range(2):
        wait_for_line(run, "deaf", rank)
    assert orch("cancel", "last", "--now").code == 0
    assert {e["signal"] for e in orch.events(run, "rank_exit")} == {"SIGKILL"}
    assert state_of(run).state == "cancelled"


def test_ctrl_c_while_following_detaches(orch: Orch, project) -> None:
    folder = project(slow_py=SLOW, slow_yaml="script: slow.py\n")
    follower = subprocess.Popen(
        orch.argv("submit", str(folder / "slow.yaml"), "-p", "local", "-f"),
        env=orch.environment(), cwd=orch.cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert follower.stdout is not None
        assert "rank 0 is up" in follower.stdout.readline()
        os.killpg(follower.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
        _, said = follower.communicate(timeout=PATIENCE)
    finally:
        follower.kill()
        follower.wait()
    assert follower.returncode == 130
    assert f"detached; {orch.run().run_id} continues" in said
    wait_until(lambda: state_of(orch.run()).state == "running", "the run, which goes on")


def test_a_run_survives_its_terminal(orch: Orch, project) -> None:
    folder = project(slow_py=SLOW, slow_yaml="script: slow.py\n")
    primary, secondary = os.openpty()
    child = subprocess.Popen(
        ["sh", "-c", f"{' '.join(orch.argv('submit', str(folder / 'slow.yaml'), '-p', 'local'))}; read forever"],
        env=orch.environment(), cwd=orch.cwd, stdin=secondary, stdout=secondary, stderr=secondary,
        start_new_session=True,
    )  # fmt: skip
    os.close(secondary)
    seen = b""
    while b"orch cancel" not in seen:
        seen += os.read(primary, 4096)
    wait_for_line(orch.run(), "is up")
    os.close(primary)  # the terminal is gone: its session gets SIGHUP
    child.terminate()
    child.wait(timeout=PATIENCE)
    wait_until(lambda: state_of(orch.run()).state == "running", "the run, which goes on")
    assert orch("cancel", "last").code == 0


def test_two_gangs_at_once_do_not_meet(orch: Orch) -> None:
    runs = [orch.submit("hello", "-p", "local-2x2", "--name", f"gang{number}") for number in range(2)]
    assert [wait(run, timeout=PATIENCE).state for run in runs] == ["succeeded"] * 2


def test_environment_secrets_and_setup(orch: Orch, project) -> None:
    canary = "canary-7f3k2q-$(touch pwned)"
    folder = project(
        env_py="import os\nprint([os.environ.get(n) for n in ('A', 'B', 'MY_C', 'KEY', 'FROM_SETUP', 'RANK')])\n",
        env_yaml="script: env.py\nenv: {A: '$(touch pwned) \"x\"', B: null}\npass_env: [MY_*]\nsecrets: [KEY]\n",
        place_yaml="kind: local\nnproc_per_node: 1\nsetup: ['export FROM_SETUP=yes']\n",
    )
    args = ("submit", str(folder / "env.yaml"), "-p", str(folder / "place.yaml"))
    refused = orch(*args, KEY=canary)
    assert refused.code == 2
    assert "B" in refused.err
    shown = orch(*args, "--env", "B=2", "--dry-run", KEY=canary, MY_C="3", RANK="77")
    assert canary not in shown.out + shown.err
    done = orch(*args, "--env", "B=2", "-f", KEY=canary, MY_C="3", RANK="77")
    assert done.out.strip() == str(['$(touch pwned) "x"', "2", "3", canary, "yes", "0"])
    run = orch.run()
    assert not list(folder.rglob("pwned")) + list(run.path.rglob("pwned"))
    log = run.node(0) / "attempt_0" / "rank_0.log"
    assert files_with(run.path, canary.encode()) == [log]  # the program itself printed it


def test_a_failing_setup_line_is_named(orch: Orch, project) -> None:
    folder = project(place_yaml="kind: local\nnproc_per_node: 1\nsetup: ['true', 'module load nothing']\n")
    done = orch("submit", "hello", "-p", str(folder / "place.yaml"), "-f")
    assert done.code == 100
    assert "setup line 2 failed: module load nothing: module: command not found" in done.err
    assert "last lines of the launcher of node 0:" in done.err
    assert "login shell defines no `module`" in done.err
    shown = orch("logs", "last")
    assert "module: command not found" in shown.out
    assert orch("logs", "last", "--rank", "0", "--grep", "setup line").out == (
        "orch: setup line 2 failed: module load nothing\n"
    )


def test_inputs_are_placed_once(orch: Orch, project) -> None:
    import hashlib

    data = b"some data\n" * 1000
    folder = project(place_yaml="kind: local\nnodes: 3\nnproc_per_node: 1\n")
    (folder / "data.bin").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    (folder / "job.yaml").write_text(
        f"command: [sh, -c, 'wc -c < $ORCH_INPUT_DATA']\n"
        f"inputs: [{{name: DATA, source: {folder / 'data.bin'}, sha256: '{digest}'}}]\n"
    )
    assert orch("submit", str(folder / "job.yaml"), "-p", str(folder / "place.yaml"), "-f").out == "10000\n"
    wrong = f"job.inputs=[{{name: DATA, source: {folder / 'data.bin'}, sha256: '{'0' * 64}'}}]"
    done = orch("submit", str(folder / "job.yaml"), "-p", str(folder / "place.yaml"), "-f", "--set", wrong)
    assert done.code == 100
    assert "but the job requires 0000" in done.err


def test_rm_keeps_what_is_live(orch: Orch, project) -> None:
    folder = project(slow_py=SLOW, slow_yaml="script: slow.py\n")
    orch("submit", "hello", "-p", "local", "-f")
    run = orch.submit(str(folder / "slow.yaml"), "-p", "local")
    refused = orch("rm", run.run_id)
    assert refused.code == 2
    assert "cancel it first" in refused.err
    assert orch("rm", "hello").code == 0
    assert [row["run_id"] for row in orch("status", "--json").json] == [run.run_id]


def test_a_submit_that_can_not_ship_its_code_leaves_nothing(orch: Orch, project) -> None:
    folder = project(big_yaml="command: ['true']\ncode: {max_size: 1KB}\n")
    (folder / "data.bin").write_bytes(b"x" * 5000)
    done = orch("submit", str(folder / "big.yaml"), "-p", "local")
    assert done.code == 2
    assert "data.bin" in done.err
    assert orch("status", "--json").json == []
