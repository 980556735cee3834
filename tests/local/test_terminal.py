"""A shell beside a run, and one of its ranks once more, at a terminal as a user has it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from orchestrator.node.system.processes import marked_processes
from orchestrator.runs.store import RunDir
from tests.local.conftest import REPO, Orch
from tests.patience import PATIENCE
from tests.terminal import terminal
from tests.testbed.machine import wait_until

KEY = "hunter2-hunter2"
# Speaks of itself, writes where a rank writes, and fails where its number is 1.
RANK = """
import hashlib, json, os, sys
from pathlib import Path
hash_of = lambda text: hashlib.sha256(text.encode()).hexdigest()
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MODE", "ORCH_RESUME")
print(json.dumps({**{name: os.environ.get(name) for name in names}, "args": sys.argv[1:],
                  "key": hash_of(os.environ.get("KEY", ""))}), flush=True)
for name in ("ORCH_RESULT_FILE", "ORCH_METRICS_FILE"):
    Path(os.environ[name]).write_text("{}")
Path(os.environ["ORCH_CHECKPOINT_DIR"]).mkdir(exist_ok=True)
Path("beside_the_code").touch()
if "wait" in sys.argv and ".replay-" in os.environ["ORCH_RUN_ID"]:
    import signal, time
    if "HEEDLESS" in os.environ:  # as native code that waits for ranks that are not there
        signal.signal(signal.SIGINT, lambda *_: print("heard", flush=True))
    print("waiting", flush=True)
    while True:  # a signal just before the system call is seen by Python only after it
        time.sleep(0.1)
sys.exit(17 if os.environ["RANK"] == "1" else 0)
"""


@pytest.fixture(scope="module")
def orch(tmp_path_factory: pytest.TempPathFactory, bare_python: str) -> Orch:
    """The command line, with one run of two ranks of which the second one has ended with 17."""
    runner, folder = Orch(tmp_path_factory.mktemp("home"), REPO, bare_python), tmp_path_factory.mktemp("project")
    (folder / "main.py").write_text(RANK)
    job = {"script": "main.py", "args": ["wait", "a b"], "env": {"MODE": "x y"}, "secrets": ["KEY"], "warm_imports": []}
    (folder / "job.yaml").write_text(json.dumps(job))
    done = runner("submit", str(folder / "job.yaml"), "-p", "local", "--nproc-per-node", "2", "-f", KEY=KEY)
    assert done.code == 100, done.err
    # The supervisor writes it once all that it has told is in the log of events.
    wait_until((runner.run().path / "verdict.json").exists, "the verdict")
    return runner


@pytest.fixture
def failed(orch: Orch) -> Iterator[RunDir]:
    """That run; the test leaves nothing in it and no process."""
    run = orch.run()
    before = snapshot(run)
    yield run
    assert snapshot(run) == before
    assert [
        each for each in marked_processes() if each.run_id.startswith(run.run_id)
    ] == []  # replays have names of its


def snapshot(run: RunDir) -> dict[str, float]:
    return {str(path): path.stat().st_mtime for path in run.path.rglob("*") if path.is_file()}


def test_a_rank_runs_once_more_by_itself_and_its_run_stays_as_it_was(orch: Orch, failed: RunDir) -> None:
    with terminal(orch.argv("replay", "last", "--rank", "1"), orch.environment(KEY=KEY)) as screen:
        said = json.loads(screen.until("waiting").splitlines()[-2])
        assert (said["RANK"], said["LOCAL_RANK"], said["WORLD_SIZE"]) == ("0", "0", "1")
        assert (said["MODE"], said["key"], said["args"]) == ("x y", sha256(KEY.encode()).hexdigest(), ["wait", "a b"])
        assert KEY not in arguments(screen.process.pid)
        holding = [path for path in failed.path.rglob("*") if path.is_file() and KEY in path.read_text("latin-1")]
        assert holding == []
        screen.type("\x03")
        assert screen.code() == 130
    assert "KeyboardInterrupt" in screen.text
    refused = orch("replay", "last", "--rank", "1")
    assert refused.code == 2
    assert "rank 1 needs KEY" in refused.err
    assert "its ranks are 0 to 1" in orch("replay", "last", "--rank", "2", KEY=KEY).err


def test_a_closed_window_ends_a_replay_and_a_reader_that_left_too(orch: Orch, failed: RunDir) -> None:
    with terminal(orch.argv("replay", "last", "--rank", "0"), orch.environment(KEY=KEY)) as screen:
        screen.until("waiting")
        screen.hang_up()
        screen.process.wait(PATIENCE)
    argv = orch.argv("replay", "last", "--rank", "0", "--here")
    with subprocess.Popen(
        argv, env=orch.environment(KEY=KEY), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as gone:
        assert gone.stdout is not None
        gone.stdout.readline()
        gone.stdout.close()
        assert gone.wait(PATIENCE) == 143


def test_what_is_printed_starts_the_rank_as_its_run_did(orch: Orch) -> None:
    failed = orch.run()
    printed = orch("replay", "last", "--rank", "1", "--dry-run").out
    assert "KEY" in printed.splitlines()[2]
    done = subprocess.run(["sh", "-ec", printed], capture_output=True, text=True, timeout=PATIENCE, check=False)
    original = (failed.node(0) / "attempt_0" / "rank_1.log").read_text()
    assert {**json.loads(done.stdout), "key": sha256(KEY.encode()).hexdigest()} == json.loads(original)
    assert done.returncode == 17


def test_a_rank_keeps_its_number_where_that_is_asked_for(orch: Orch, failed: RunDir) -> None:
    argv = orch.argv("replay", "last", "--rank", "1", "--true-rank")
    with terminal(argv, orch.environment(KEY="k")) as screen:
        said = json.loads(screen.until("waiting").splitlines()[-2])
        assert (said["RANK"], said["LOCAL_RANK"], said["WORLD_SIZE"]) == ("1", "1", "2")
        assert "it must not call init_process_group" in screen.text
        screen.type("\x03")
        assert screen.code() == 130


def test_a_second_ctrl_c_ends_a_rank_that_heeds_none(orch: Orch, failed: RunDir) -> None:
    argv = orch.argv("replay", "last", "--rank", "1")
    with terminal(argv, orch.environment(KEY="k", HEEDLESS="1")) as screen:
        screen.until("waiting")
        screen.type("\x03")
        screen.until("Ctrl-C once more kills it")
        screen.type("\x03")
        assert screen.code() == 137


def test_a_shell_begins_beside_the_code_and_passes_its_exit_code_on(orch: Orch, failed: RunDir) -> None:
    with terminal(orch.argv("shell", "last"), orch.environment(TERM="dumb")) as screen:
        screen.until("exit ends this shell")
        screen.type("test -t 0 && pwd\nexit 7\n")
        assert screen.code() == 7
    assert f"{failed.path / 'code'}\n" in screen.text  # after the shell's prompt, where that was faster than the typing
    assert orch("shell", "last", "--", "ls", "main.py").out == "main.py\n"
    refused = orch("shell", "last", "--node", "3")
    assert (refused.code, refused.err.splitlines()[0]) == (2, f"orch: run {failed.run_id} has no node 3")


def arguments(pid: int) -> str:
    """The command lines of the process and of all below it."""
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = Path(f"/proc/{pid}/cmdline").read_text()
    return own + "".join(arguments(int(each)) for each in below)
