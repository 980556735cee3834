"""Trackers, told by the supervisor and read back by their own packages: TensorBoard, an MLflow server, wandb."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.looking.run import wait
from orchestrator.node.agent.metrics.following import Followed
from orchestrator.node.agent.metrics.wandb import WandbFile
from orchestrator.node.system.processes import send_signal, wait_gone
from orchestrator.runs.outbox import SECRETS
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.store import RunDir, create_run, read_lines, retire
from orchestrator.trackers import wandb
from orchestrator.trackers.feed import Feed
from orchestrator.trackers.progress import Progress, progress_of
from tests.patience import PATIENCE

from .conftest import REPO, Orch, files_with
from .test_results import supervisor_of

TRACKERS = REPO / ".venv-trackers/bin/python"  # by `make test`
READER = Path(__file__).with_name("programs") / "read_trackers.py"
PROGRAM = """
import json, os, time
attempt = int(os.environ["ORCH_ATTEMPT"])
with open(os.environ["ORCH_METRICS_FILE"], "a") as file:
    for step in range(10 * attempt, 10 * attempt + 15):
        line = {"kind": "train", "step": step, "loss": 1 / (step + 1), "lr": 0.5, "attempt": attempt}
        file.write(json.dumps({**line, "time": round(time.time(), 3)}) + "\\n")
end = time.monotonic() + 300
while not os.path.exists(f"{os.environ['GO']}{attempt}") and time.monotonic() < end:
    time.sleep(0.02)
if attempt == 0:
    raise SystemExit("the first attempt fails")
with open(os.environ["ORCH_RESULT_FILE"], "w") as file:
    file.write('{"accuracy": 0.75}')
"""
JOB = """
name: tracked
script: program.py
args: [--lr, 0.5, --api-key, canary-argument]
track: [tensorboard, mlflow]
retry: {user_error: 1}
env: {GO: null}
"""


def read(*arguments: str) -> Any:
    environment = {
        **os.environ,
        "no_proxy": "*",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }
    done = subprocess.run(
        [TRACKERS, READER, *arguments], capture_output=True, text=True, check=False, env=environment,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def until(what: Callable[[], Any]) -> Any:
    """Return what there is as soon as there is something."""
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


class Server:
    """MLflow's own server on a data base, at an address of this process alone, so that it can come back to it."""

    def __init__(self, folder: Path) -> None:
        pid = os.getpid()
        self.folder, self.host = folder, f"127.{64 + (pid >> 16) % 64}.{pid >> 8 & 255}.{pid & 255 or 1}"
        self.address = f"http://{self.host}:5077"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            **os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "true",
        }  # fmt: skip
        argv = [TRACKERS.with_name("mlflow"), "server", "--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db",
                "--host", self.host, "--port", "5077", "--workers", "1", "--allowed-hosts", "*"]  # fmt: skip
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                argv, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=environment,
            )  # fmt: skip
        until(self._is_up)

    def _is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=5) as response:  # noqa: S310 (ours)
                return bool(response.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        """End it with the processes that it has started, which are of its session."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=PATIENCE)
            self.process = None


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "mlflow").mkdir()
    server = Server(tmp_path / "mlflow")
    server.start()
    yield server
    server.stop()


def told(orch: Orch, run: RunDir, name: str) -> dict[str, Any]:
    (found,) = [each for each in orch("status", run.run_id, "--json").json["trackers"] if each["name"] == name]
    return dict(found)


def lines_of(run: RunDir) -> list[dict[str, Any]]:
    return list(read_lines(run.path / "metrics.jsonl"))


def check(server: Server, run: RunDir, run_at_server: str) -> None:
    (kept,) = read("mlflow", server.address, "tracked")
    steps = [*range(15), *range(10, 25)]  # MLflow keeps what an attempt has done again beside it
    assert sorted(step for step, _ in kept["curves"]["train/loss"]) == sorted(steps)
    assert all(value == 1 / (step + 1) for step, value in kept["curves"]["train/loss"])
    assert kept["curves"]["result/accuracy"] == [[24, 0.75]]
    assert (kept["id"], kept["name"], kept["status"]) == (run_at_server, run.run_id, "FINISHED")
    assert kept["params"]["args.lr"] == "0.5"
    assert kept["params"]["args"] == "--lr 0.5 --api-key ***"
    assert kept["tags"]["orch.outcome"] == "succeeded"
    board = read("tensorboard", str(run.path / "trackers/tensorboard"))
    later = {line["step"]: line for line in lines_of(run)}  # of steps that were done again, the later values
    curve = [[step, pytest.approx(later[step]["loss"]), later[step]["time"]] for step in range(25)]
    assert board["curves"]["train/loss"] == curve
    assert "| outcome | succeeded |" in board["texts"]["verdict/text_summary"]
    assert "| args.lr | 0.5 |" in board["texts"]["parameters/text_summary"]


@pytest.mark.full(
    "tests/unit/trackers/test_mlflow.py",
    "tests/unit/trackers/test_event_file.py",
    "tests/unit/trackers/test_progress.py",
    "tests/unit/supervisor/test_outbox.py",
)
@pytest.mark.timeout(900)
def test_a_run_is_told_once_through_kills_a_restart_and_a_server_that_was_away(
    orch: Orch, project: Callable[..., Path], server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(program_py=PROGRAM, job_yaml=JOB, one_yaml="kind: local\nnproc_per_node: 1\n")
    address = server.address.replace("http://", "http://me:canary-password@")
    run = orch.submit(
        str(folder / "job.yaml"), "-p", str(folder / "one.yaml"), GO=str(tmp_path / "go"), MLFLOW_TRACKING_URI=address
    )
    size = until(lambda: len(lines_of(run)) == 15 and os.stat(run.path / "metrics.jsonl").st_size)
    until(lambda: progress_of(run, "mlflow").offset == progress_of(run, "tensorboard").offset == size)
    (live,) = read("mlflow", server.address, "tracked")
    assert live["status"] == "RUNNING"
    assert [step for step, _ in live["curves"]["train/loss"]] == list(range(15))

    supervisor = supervisor_of(orch)
    send_signal(supervisor, signal.SIGKILL)
    assert wait_gone([supervisor], PATIENCE) == []
    server.stop()
    (tmp_path / "go0").touch()
    until(lambda: len(lines_of(run)) == 30)  # the restarted ranks, by their agent
    assert told(orch, run, "mlflow")["link"].startswith(f"{server.address}/#/experiments/")  # starts a supervisor
    problem = until(lambda: told(orch, run, "mlflow")["problem"])
    assert problem == f"MLflow at {server.address} can't be reached: Connection refused"
    assert f"not sent yet: {problem}" in orch("status", run.run_id).out
    (tmp_path / "go1").touch()
    assert wait(run, timeout=PATIENCE).state == "succeeded"  # whatever the server does
    server.start()
    until(lambda: not list((orch.home / "outbox").iterdir()))

    check(server, run, live["id"])
    for name in ("mlflow", "tensorboard"):  # as after a kill between the telling and the ledger, for every line
        (run.path / "outbox" / f"{name}.json").unlink()
    run.write(SECRETS, {"MLFLOW_TRACKING_URI": server.address}, private=True)
    assert [Feed(run, name).deliver() for name in ("mlflow", "tensorboard")] == ["", ""]
    check(server, run, live["id"])
    holding = files_with(orch.home, b"canary-password")
    assert holding == []

    monkeypatch.setattr(wandb, "INTERPRETER", str(TRACKERS))
    ending = run.ending()
    assert ending is not None
    for _ in range(2):  # what is there already is written anew
        done = wandb.Wandb(run, run.record(), Redaction()).end(Progress(), ending, {"accuracy": 0.75})
    assert done.link == f"wandb sync {run.path}/trackers/wandb/offline-run-*"
    rows = read("wandb", str(run.path / "trackers/wandb"))
    assert [(row["step"], row["train/loss"]) for row in rows] == [(step, 1 / (step + 1)) for step in range(25)]
    later = {line["step"]: line["time"] for line in lines_of(run)}
    assert [row["_timestamp"] for row in rows] == list(later.values())
    (offline,) = (run.path / "trackers/wandb").glob("offline-run-*/run-*.wandb")
    points = WandbFile(Followed(str(offline), str(run.path))).read(lambda: False)
    assert [(point.step, point.values["train/loss"]) for point in points] == [
        (step, 1 / (step + 1)) for step in range(25)
    ]


def test_tensorboard_shows_runs_that_nobody_told_it_of(orch: Orch) -> None:
    run = create_run(orch.home, "plain-abcdef", {"name": "plain", "created": 1795000000.0, "job": {"script": "x.py"}})
    retire(orch.home, run)
    lines = [{"kind": "train", "step": step, "loss": 1 / (step + 1), "time": 1795000000.0 + step} for step in range(3)]
    (run.path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    empty = orch("tensorboard", "last", PATH="/usr/bin:/bin")
    assert empty.code == 2
    assert empty.err.splitlines()[0] == "orch: TensorBoard is installed neither in orch's environment nor on PATH"
    assert f"{sys.executable} -m pip install tensorboard" in empty.err
    path = f"{TRACKERS.parent}:{os.environ['PATH']}"
    process = subprocess.Popen(
        orch.argv("tensorboard", "last", "--port", "0"), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=orch.environment(PATH=path, no_proxy="*"), cwd=orch.cwd, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    said = ""
    while "Press CTRL+C" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    assert "plain-abcdef is shown as it is now and not updated, because its job has no `track: tensorboard`" in said
    address = said.rpartition("http://")[2].split("/")[0]
    assert address.startswith("127.0.0.1:")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def tags() -> Any:
        with opener.open(f"http://{address}/data/plugin/scalars/tags", timeout=PATIENCE) as response:
            return json.loads(response.read())

    assert until(lambda: tags().get("plain-abcdef"))["train/loss"]  # it reads beside its answers
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    assert process.wait(timeout=PATIENCE) == 130
    process.stderr.close()
