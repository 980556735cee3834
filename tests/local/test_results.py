"""What real runs leave, through the command line: checkpoints, copies, records, repeats, archives, notifications."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchestrator.looking.run import wait
from orchestrator.looking.state import state_of
from orchestrator.node.system.processes import Process, identify, is_alive, send_signal, wait_gone
from orchestrator.runs.files.checkpoints import listing
from orchestrator.runs.store import RunDir, read_lines
from tests.patience import PATIENCE
from tests.testbed.machine import wait_until

from .conftest import WARM_DIGITS, Orch, files_with

SLEEPER = """
import os, signal, sys, time
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
print("rank", os.environ["RANK"], "is up", flush=True)
end = time.monotonic() + 600
while not stop and time.monotonic() < end:
    time.sleep(0.02)
sys.exit(95 if stop else 0)
"""


def up(run: RunDir, ranks: int = 1) -> None:
    """Return when so many ranks have said that they are up, and the run is known to go on."""
    logs = "nodes/*/attempt_*/rank_*.log"
    wait_until(lambda: sum("is up" in path.read_text() for path in run.path.glob(logs)) >= ranks, "the ranks")
    wait_until(lambda: state_of(run).state == "running", "the run")


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """A webhook on loopback, whose address is in HOOK; what it got."""
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.server_port}/canary-hook")
    monkeypatch.setenv("CHANNELS", f"json://me:canary-hook@127.0.0.1:{server.server_port}/apprise")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield got
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_training_runs_results(orch: Orch, tmp_path: Path) -> None:
    args = ("--set", "job.training.epochs=4", "--set", "job.training.save_every=20", "--set", "job.checkpoint.keep=9")
    run = orch.with_torch.submit("digits_ddp", "-p", "local", *args, *WARM_DIGITS)
    early = orch("pull", run.run_id, "--to", str(tmp_path / "out"))  # of a run that has hardly begun
    assert early.code == 0, early.err
    assert wait(run, timeout=PATIENCE).state == "succeeded"

    found = orch("checkpoints", "last", "--verify", "--json").json
    assert [each["verdict"] for each in found] == ["ok"] * len(found)
    assert {each["world_size"] for each in found} == {2}
    page = orch("checkpoints", "last").out
    assert str(found[-1]["step"]) in page
    assert "accuracy" in page

    pulled = orch("pull", "last", "--to", str(tmp_path / "out"), "--checkpoint", "best", "--json").json
    best = max(found, key=lambda each: (each["metric"].get("accuracy", -1), each["step"]))
    assert pulled["step"] == best["step"]
    assert "accuracy" in pulled["choice"]
    copies = listing(tmp_path / "out" / "checkpoints", verify=True)
    assert best["step"] in [each.step for each in copies]
    assert all(each.is_whole for each in copies)
    for name in ("metrics.jsonl", "result.json"):
        assert (tmp_path / "out" / name).read_bytes() == (run.path / name).read_bytes()
    assert "training" in orch("status", "last", "--json").json["record"]["job"]

    record = orch("status", "last", "--json").json["record"]
    assert record["versions"]["nodes"][0]["torch"]
    assert [sorted(each["exits"]) for each in record["attempts"]] == [["0", "1"]]
    phases = {each["phase"]: each["seconds"] for each in record["phases"]}
    assert {"submitting", "queued", "importing", "starting", "running", "saving"} <= set(phases)
    assert 0 < record["hours"]["rank_hours"] <= 2 * record["hours"]["cpu_hours"]

    broken = run.path / "checkpoints" / f"step_{found[0]['step']:08d}" / "state.pt"
    broken.write_bytes(broken.read_bytes()[:-1] + b"?")
    done = orch("checkpoints", "last", "--verify")
    assert done.code == 1
    assert "corrupt: state.pt does not match" in done.out


OWN_SCRIPT = """
import torch
from orchestrator.training import run
model = torch.nn.Linear(1, 1)
first = run.resume(model=model)
print("begins at", first)
for step, accuracy in enumerate([0.1, 0.9, 0.5, 0.3], 1):
    if step > first:
        run.after_step(step, 4, save_every=1, metric={"accuracy": torch.tensor(accuracy)}, model=model)
"""


def test_the_best_checkpoint_of_a_script_of_ones_own_stays_and_is_what_best_means(
    orch: Orch, project: Callable[..., Path], tmp_path: Path
) -> None:
    folder = project(train_py=OWN_SCRIPT, train_yaml="script: train.py\ncheckpoint: {keep: 1, keep_best: accuracy}\n")
    job, orch = str(folder / "train.yaml"), orch.with_torch
    done = orch("submit", job, "-p", "local", "--nproc-per-node", "1", "-f")
    assert done.code == 0, done.err
    run = orch.run()
    listed = orch("checkpoints", run.run_id, "--json").json
    assert [(each["step"], round(each["metric"]["accuracy"], 3)) for each in listed] == [(2, 0.9), (4, 0.3)]
    pulled = orch("pull", run.run_id, "--checkpoint", "best", "--to", str(tmp_path / "out"), "--json").json
    assert (pulled["step"], pulled["choice"]) == (2, "accuracy 0.9 is the largest of 2")
    again = orch("submit", job, "-p", "local", "--nproc-per-node", "1", "-f", "--resume", f"{run.run_id}:best")
    assert again.code == 0, again.err
    assert "begins at 2" in again.out


def test_a_training_saves_what_it_has_evaluated_and_keeps_the_best_in_parts_too(orch: Orch) -> None:
    sets = [
        "job.training.strategy=fsdp", "job.training.epochs=1", "job.training.eval_every=4", "job.training.save_every=5",
        "job.checkpoint.keep=1", "job.checkpoint.keep_best=loss", "job.training.lr=0.01",
    ]  # fmt: skip
    words = [word for each in sets for word in ("--set", each)]
    done = orch.with_torch("submit", "digits_ddp", "-p", "local", "-f", *words, *WARM_DIGITS)
    assert done.code == 0, done.err
    run = orch.run()
    measured = [line for line in read_lines(run.path / "metrics.jsonl") if line["kind"] == "eval"]
    assert len(measured) > 3
    best = min(measured, key=lambda line: line["loss"])
    listed = orch("checkpoints", run.run_id, "--json").json
    assert {each["step"] for each in listed} == {best["step"], measured[-1]["step"]}
    assert listed[0]["metric"]["loss"] == best["loss"]


def test_what_a_run_here_has_written_is_listed_and_pulled_and_its_removal_says_so(
    orch: Orch, project: Callable[..., Path], tmp_path: Path
) -> None:
    writes = "import os\nopen('model.pt', 'w').write('w')\nopen(os.environ['ORCH_OUTPUT_DIR'] + '/x', 'w').write('x')\n"
    project(main_py=writes, job_yaml="{script: main.py, launcher: exec}")
    run = orch.submit(str(tmp_path / "project" / "job.yaml"), "-p", "local", "--set", "profile.nproc_per_node=1")
    assert wait(run, timeout=PATIENCE).state == "succeeded"
    listed = orch("outputs", run.run_id, "--json").json
    assert [(each["path"], each["bytes"]) for each in listed["files"]] == [("model.pt", 1), ("x", 1)]
    assert orch("pull", run.run_id, "--to", str(tmp_path / "out"), "--outputs").code == 0
    assert [(tmp_path / "out/outputs" / name).read_text() for name in ("model.pt", "x")] == ["w", "x"]
    assert f"2 output files (2 B) went with {run.run_id}" in orch("rm", run.run_id).err


def test_a_run_repeated_compared_and_bundled(orch: Orch, project: Callable[..., Path], tmp_path: Path) -> None:
    canary = "canary-9d2k-value"
    script = (
        "import os\nprint('rate', os.environ.get('RATE'), os.environ['MY_TOKEN'])\nopen('made_here', 'w').write('x')\n"
    )
    folder = project(
        say_py=script, say_yaml="script: say.py\nsecrets: [MY_TOKEN]\n", here_yaml="kind: local\nnproc_per_node: 2\n"
    )
    first = orch(
        "submit", str(folder / "say.yaml"), "-p", str(folder / "here.yaml"), "--env", "RATE=1", "-f", MY_TOKEN=canary
    )
    assert first.code == 0, first.err
    one = orch.run()
    (folder / "say.py").write_text(
        "import os\nprint(os.environ['MY_TOKEN'])\nraise ValueError(os.environ['MY_TOKEN'])\n"
    )
    again = orch("submit", "--from", one.run_id, "-f", MY_TOKEN=canary)
    assert again.code == 0, again.err
    assert again.out == f"rate 1 {canary}\n"
    two = orch.run()
    assert (two.read("run.json") or {})["repeats"] == one.run_id
    assert orch("submit", "--from", one.run_id).code == 2  # the secret is asked for again

    assert orch("submit", str(folder / "say.yaml"), "-p", str(folder / "here.yaml"), "-f", MY_TOKEN=canary).code == 100
    found = orch("diff", one.run_id, "last", "--json").json
    assert found["files"][0]["path"] == "say.py"
    assert "+raise ValueError(os.environ['MY_TOKEN'])" in found["files"][0]["diff"]
    failed = orch.run()
    assert "ValueError: ***" in orch("why", failed.run_id).out
    written = {path.name for path in files_with(failed.path, canary.encode())}
    # The first rank that fails ends the other, which may have said nothing yet.
    words = {f"rank_{rank}.log" for rank in range(2)} | {f"error_{rank}.json" for rank in range(2)}
    assert written
    assert written <= words  # the program's own words
    rows = {(row["section"], row["what"]): (row["one"], row["other"]) for row in found["rows"]}
    assert rows["result", "state"] == ("succeeded", "failed")
    assert rows["env", "RATE"] == ("set", "-")
    same = orch("diff", one.run_id, two.run_id, "--json").json
    assert same["files"] == []
    assert {row["section"] for row in same["rows"]} <= {"result"}

    done = orch("bundle", one.run_id, "-o", str(tmp_path / "b.tar.gz"), MY_TOKEN=canary)
    assert done.code == 0, done.err
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        files = {}
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            files[member.name.partition("/")[2]] = file.read()
    assert b"rate 1 ***" in files["nodes/0/attempt_0/rank_0.log"]
    assert not [name for name, content in files.items() if canary.encode() in content]


NOTIFY = """
script: fail.py
notify:
  - {on: [failed, succeeded], command: [sh, told.sh]}
  - {on: [failed], webhook_env: HOOK}
  - {on: [succeeded], webhook_env: HOOK}
  - {on: [failed], command: [sh, -c, 'exit 5']}
  - {on: [failed], apprise_env: CHANNELS}
"""

FAILS_WHEN_TOLD = """
import os, time
while not os.path.exists("GO"):
    time.sleep(0.02)
raise ValueError("boom")
"""


def test_it_is_told_with_the_terminal_closed(
    orch: Orch, project: Callable[..., Path], inbox: list[dict[str, Any]], tmp_path: Path
) -> None:
    folder = project(
        fail_py=FAILS_WHEN_TOLD.replace("GO", f"{tmp_path}/go"), fail_yaml=NOTIFY,
        told_sh='cat > "$ORCH_RUN_DIR/told.json"; echo "$ORCH_EVENT" >> "$ORCH_RUN_DIR/events"\n',
        one_yaml="kind: local\nnproc_per_node: 1\n",
    )  # fmt: skip
    primary, secondary = os.openpty()
    argv = orch.argv("submit", str(folder / "fail.yaml"), "-p", str(folder / "one.yaml"))
    child = subprocess.Popen(["sh", "-c", f"{' '.join(argv)}; read forever"], env=orch.environment(), cwd=orch.cwd,
                             stdin=secondary, stdout=secondary, stderr=secondary, start_new_session=True)  # fmt: skip
    os.close(secondary)
    seen = b""
    while b"orch cancel" not in seen:
        seen += os.read(primary, 4096)
    os.close(primary)  # the terminal is gone
    child.terminate()
    child.wait(timeout=PATIENCE)
    run = orch.run()
    (tmp_path / "go").touch()
    assert wait(run, timeout=PATIENCE).state == "failed"
    finished(orch)
    assert [message["id"] for message in inbox[:-1]] == [f"{run.run_id}/failed/1"]
    assert "ValueError: boom" in inbox[0]["text"]
    assert inbox[-1]["title"] == f"{run.run_id} failed"
    assert "ValueError: boom" in inbox[-1]["message"]  # apprise's own form
    assert json.loads((run.path / "told.json").read_text())["verdict"]["rank"] == 0
    assert (run.path / "events").read_text() == "failed\n"
    assert orch("why", run.run_id).code == 0
    page = orch("status", run.run_id).out
    assert "notification (failed): sent" in page
    assert "notification (failed): NOT SENT: sh ended with code 5" in page
    states = [line["state"] for line in orch("status", run.run_id, "--json").json["notifications"]]
    assert sorted(states) == ["failed", "sent", "sent", "sent"]
    assert files_with(orch.home, b"canary-hook") == []


def finished(orch: Orch) -> None:
    """Return when the supervisor has told everything."""
    wait_until(lambda: not any((orch.home / "outbox").iterdir()), "the end of all messages")


def test_a_supervisor_killed_between_is_followed_by_one_that_tells(
    orch: Orch, project: Callable[..., Path], inbox: list[dict[str, Any]]
) -> None:
    folder = project(
        up_py=SLEEPER, one_yaml="kind: local\nnproc_per_node: 1\n",
        up_yaml="script: up.py\nnotify: {on: [cancelled], webhook_env: HOOK}\n",
    )  # fmt: skip
    run = orch.submit(str(folder / "up.yaml"), "-p", str(folder / "one.yaml"))
    up(run)
    supervisor = supervisor_of(orch)
    send_signal(supervisor, signal.SIGKILL)
    assert wait_gone([supervisor], PATIENCE) == []
    assert orch("cancel", run.run_id).code == 0  # gives the verdict itself, and starts another supervisor
    finished(orch)
    assert [message["event"] for message in inbox] == ["cancelled"]


def supervisor_of(orch: Orch) -> Process:
    """The process that holds this state folder's supervisor lock, as the kernel tells."""
    lock = orch.home / f"supervisor.{os.uname().nodename}.lock"
    wait_until(lock.exists, "the supervisor's lock")
    inode = lock.stat().st_ino

    def found() -> list[Process]:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        mine = [words for words in locks if words[1] == "FLOCK" and words[5].split(":")[-1] == str(inode)]
        return [process for words in mine if (process := identify(int(words[4]))) is not None]

    holders = list[Process]()
    wait_until(lambda: bool(holders.extend(found()) or holders), "a supervisor that holds the lock")
    return holders[0]


def test_a_supervisor_killed_while_it_tells_is_followed_by_one_that_tells_again(
    orch: Orch, project: Callable[..., Path]
) -> None:
    words = 'echo "$ORCH_NOTIFY_ID" >> "$ORCH_RUN_DIR/ids"; until [ -e "$ORCH_RUN_DIR/go" ]; do sleep 0.05; done'
    folder = project(
        one_yaml="kind: local\nnproc_per_node: 1\n",
        job_yaml=f"command: ['true']\nnotify: {{command: [sh, -c, {json.dumps(words)}]}}\n",
    )  # fmt: skip
    run = orch.submit(str(folder / "job.yaml"), "-p", str(folder / "one.yaml"))
    wait_until((run.path / "ids").exists, "the beginning of the message")
    supervisor = supervisor_of(orch)
    send_signal(supervisor, signal.SIGKILL)
    assert wait_gone([supervisor], PATIENCE) == []
    assert orch("status", run.run_id, "--json").json["notifications"][0]["state"] == "intent"
    (run.path / "go").touch()
    assert orch("gc").code == 0  # starts another supervisor
    finished(orch)
    assert (run.path / "ids").read_text().split() == [f"{run.run_id}/succeeded/0"] * 2
    assert orch("status", run.run_id, "--json").json["notifications"][0]["state"] == "sent"


def test_gc_with_two_live_runs_and_one_that_crashed(orch: Orch, project: Callable[..., Path]) -> None:
    folder = project(up_py=SLEEPER, up_yaml="script: up.py\n", one_yaml="kind: local\nnproc_per_node: 1\n")
    runs = [orch.submit(str(folder / "up.yaml"), "-p", str(folder / "one.yaml")) for _ in range(3)]
    for run in runs:
        up(run)
    send_signal(supervisor_of(orch), signal.SIGKILL)
    ranks = [pids_of(orch, run) for run in runs]
    agents = [json.loads((run.node(0) / "agent.json").read_text()) for run in runs]
    crashed = Process(agents[0]["pid"], agents[0]["started"])
    send_signal(crashed, signal.SIGKILL)
    assert wait_gone([crashed], PATIENCE) == []
    assert wait_gone(ranks[0], PATIENCE) == []  # ranks die with their agent by themselves

    mine = {run.run_id for run in runs}
    would = [each for each in orch("gc", "--dry-run", "--json").json if concerns(each, mine)]
    assert [(each["what"], each["done"]) for each in would] == [(runs[0].run_id, "would be ended")]
    done = [each for each in orch("gc", "--json").json if concerns(each, mine)]
    assert [(each["what"], each["done"]) for each in done] == [(runs[0].run_id, "ended")]
    assert [wait(run, timeout=0).state for run in runs] == ["failed", "running", "running"]
    assert all(is_alive(process) for group in ranks[1:] for process in group)
    assert [each for each in orch("gc", "--json").json if concerns(each, mine)] == []
    assert supervisor_of(orch)  # there is one again
    for run in runs[1:]:
        assert orch("cancel", run.run_id).code == 0


def concerns(finding: dict[str, str], run_ids: set[str]) -> bool:
    """Other tests may run on this machine: their processes are listed, and kept."""
    return any(run_id in finding["what"] + finding["why"] for run_id in run_ids)


def pids_of(orch: Orch, run: RunDir) -> list[Process]:
    pids = [pid for event in orch.events(run, "launcher_started") for pid in event["pids"].values()]
    return [process for pid in pids if (process := identify(pid)) is not None]
