"""Agents under the variables of a Slurm job, without Slurm: what each start takes over from the ones before it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.server.outputs import baseline
from orchestrator.node.system.processes import marked, wait_gone
from orchestrator.protocol.code_baseline import write_baseline
from orchestrator.protocol.gang import GANG_PORT_RANGE
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.ranks import EXIT_REQUEUE
from orchestrator.protocol.task import NodeTask, Program
from orchestrator.runs.files.metrics import names_of_series, series
from orchestrator.runs.restarts.attempts import attempts_of
from orchestrator.runs.store import RunDir, read_lines
from orchestrator.trackers import event_file
from orchestrator.transport.credentials import new_credentials
from orchestrator.transport.node_archive import node_archive
from tests.patience import PATIENCE

# A program whose rank 0 saves a "checkpoint" each start, where it is told to; then it waits for its end.
CREDENTIALS = new_credentials()
PROGRAM = """
import os, signal, sys, time
folder = os.environ["ORCH_CHECKPOINT_DIR"]
step = len(os.listdir(folder)) + 1
if os.environ.get("SAVES") and os.environ["RANK"] == "0":
    os.makedirs(f"{folder}/step_{step:08}")
    open(f"{folder}/step_{step:08}/COMMIT", "w").close()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(95))
print("ready, attempt", os.environ["ORCH_ATTEMPT"], flush=True)
if int(os.environ["ORCH_ATTEMPT"]) == int(os.environ.get("UNTIL", "99")):
    sys.exit(0)
while True:
    time.sleep(1)
"""

# Two workers feed it, in processes of their own; it stops at the next batch after it was told to.
LOADER = """
import os, signal, sys
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, index):
        return float(index)
if __name__ == "__main__":
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    for count, batch in enumerate(DataLoader(Numbers(), 16, num_workers=2, multiprocessing_context=sys.argv[1])):
        if count == 5:
            print("ready, with workers", flush=True)
        if stop:
            stop.append(1)
        if len(stop) > 20:  # some batches later: the workers live
            os._exit(95)
"""

# As SummaryWriter, it writes to a folder whose name has the time and the host, so each start has another folder.
CURVES = f"""
import os, pickle, signal, sys, time
number, given = int(os.environ["ORCH_ATTEMPT"]), os.environ.get("ORCH_RESUME_FROM")
records = {{
    "train": {[event_file.scalars([("train/loss", float(step))], step, 1.7e9 + step) for step in range(4)]!r},
    "eval": {[event_file.scalars([("eval/loss", float(step))], step, 1.7e9 + step) for step in range(4)]!r},
}}
signal.signal(signal.SIGTERM, lambda *_: sys.exit(95))
if os.environ["RANK"] == "0":
    begin = pickle.load(open(given, "rb"))["step"] if given else 0
    folder = f"runs/Nov28_05-0{{number}}-00_n{{number}}"
    os.makedirs(folder)
    with open(f"{{folder}}/events.out.tfevents.170000000{{number}}.n{{number}}.{{os.getpid()}}.0", "wb") as file:
        file.write(b"".join(records["train"][begin : begin + 2] + records["eval"][begin : begin + 2]))
    if begin == 0:
        with open("step-2.part", "wb") as file:
            pickle.dump({{"step": 2, "weights": bytes(100_000)}}, file)
        os.rename("step-2.part", "step-2.pt")
print("ready, attempt", number, flush=True)
while number == 0:
    time.sleep(1)
"""


class Job:
    """A job of two nodes, both on this machine, that is started again by hand."""

    def __init__(
        self, folder: Path, text: str = PROGRAM, *args: str, timeouts: int | None = 0, shell: str = "", **env: str
    ) -> None:
        program = Program("command", "bash", ("-c", shell)) if shell else Program("script", "train.py", args)
        self.folder, self.agents = folder, list[subprocess.Popen[bytes]]()
        for name in ("slurm", "checkpoints", "code"):
            (folder / name).mkdir(parents=True)
        (folder / "node.pyz").write_bytes(node_archive())
        (folder / "code/train.py").write_text(text)
        write_baseline(str(folder / "code"), baseline(str(folder / "code")))
        common = NodeTask(
            run_id=folder.name, node_rank=0, nnodes=2, hosts=("slurm node 0", "slurm node 1"), nproc=1,
            run_dir=str(folder), code_dir=str(folder / "code"), program=program,
            launcher="exec", backend="gloo", python=sys.executable, leader_addrs=(), port_range=GANG_PORT_RANGE,
            credentials=CREDENTIALS,
            env=env, checkpoint_dir=str(folder / "checkpoints"), join_timeout=120.0, grace=30.0,
            retry={"infra": 1, "preempted": None, "timeout": timeouts},
        )  # fmt: skip
        for node in range(2):
            path = Path(node_folder(str(folder), node))
            path.mkdir(parents=True)
            (path / "task.json").write_text(json.dumps(replace(common, node_rank=node).to_json()))

    def start(self, number: int) -> None:
        values = {"SLURM_JOB_ID": "17", "SLURM_STEP_NODELIST": "localhost,localhost"}
        values |= {"SLURM_JOB_START_TIME": "1000", "SLURM_JOB_END_TIME": "1600"}
        for node in range(2):
            own = {**os.environ, **values, "SLURM_NODEID": str(node), "SLURM_RESTART_COUNT": str(number)}
            argv = [sys.executable, str(self.folder / "node.pyz"), "slurm", str(self.folder)]
            with open(self.folder / "slurm" / f"agent.17.{number}.{node}.log", "wb") as log:
                self.agents.append(subprocess.Popen(argv, env=own, stderr=log))

    def events(self, kind: str, node: int = 0) -> list[dict[str, Any]]:
        path = Path(node_folder(str(self.folder), node)) / "events.jsonl"
        return [event for event in read_lines(path) if event["kind"] == kind]

    def wait_for_rank(self, attempt: int) -> None:
        """Until both ranks listen; the test's own time-out is the limit."""
        for rank in range(2):
            log = self.folder / "nodes" / str(rank) / f"attempt_{attempt}" / f"rank_{rank}.log"
            while not log.exists() or "ready" not in log.read_text():
                assert self.agents[-2].poll() is None, self.logs()
                time.sleep(0.02)

    def codes(self) -> list[int]:
        return [agent.wait(timeout=PATIENCE) for agent in self.agents[-2:]]

    def word(self, start: int) -> dict[str, Any] | None:
        path = self.folder / "slurm" / f"again.{start}"
        return json.loads(path.read_text()) if path.exists() else None

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.rglob("*.log")))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    jobs: list[Job] = []

    def made(*text: str, **env: Any) -> Job:
        jobs.append(Job(tmp_path / f"job{len(jobs)}-{os.getpid()}", *text, **env))
        return jobs[-1]

    yield made
    for job in jobs:
        for agent in job.agents:
            if agent.poll() is None:
                agent.kill()
                agent.wait()
        assert wait_gone(marked(job.folder.name), PATIENCE) == []  # those of a killed agent end by its end


def test_a_start_goes_on_where_the_last_one_was_stopped(make: Any) -> None:
    job = make(SAVES="1", UNTIL="2")
    job.start(0)
    job.wait_for_rank(0)
    for agent in job.agents:  # as a scheduler does: everybody
        agent.send_signal(signal.SIGTERM)
    assert job.codes() == [EXIT_REQUEUE, EXIT_REQUEUE]
    assert job.word(0)["cause"] == "preempted"
    job.start(1)
    job.wait_for_rank(1)
    for agent in job.agents[-2:]:
        agent.send_signal(signal.SIGTERM)
    assert job.codes() == [EXIT_REQUEUE, EXIT_REQUEUE]
    job.start(2)
    assert job.codes() == [0, 0], job.logs()
    assert [event["attempt"] for event in job.events("go")] == [0, 1, 2]
    again = [(event["start"], event["cause"], event["step"]) for event in job.events("starting_again")]
    assert again == [(1, "preempted", 1), (2, "preempted", 2)]
    assert job.word(2) is None
    assert [event["hosts"] for event in job.events("batch_job")] == [["localhost", "localhost"]] * 3


def test_a_requeue_continues_each_curve_and_tells_that_the_checkpoint_was_loaded(make: Any) -> None:
    job = make(CURVES)
    job.start(0)
    job.wait_for_rank(0)
    for agent in job.agents:
        agent.send_signal(signal.SIGTERM)
    assert job.codes() == [EXIT_REQUEUE, EXIT_REQUEUE], job.logs()
    job.start(1)
    assert job.codes() == [0, 0], job.logs()
    run = RunDir(job.folder)
    assert names_of_series(run) == {"train/loss", "eval/loss"}
    for name in ("train/loss", "eval/loss"):
        assert series(run, name) == [(step, float(step)) for step in range(4)]
    first, second = attempts_of(run.events())
    assert (first.offered, second.offered, second.resumed_from) == (None, "code/step-2.pt", "code/step-2.pt")
    assert [event["read"] for event in job.events("first_steps")] == [True]


def test_an_agent_that_is_killed_costs_the_infra_budget_once(make: Any) -> None:
    job = make(SAVES="1")
    job.start(0)
    job.wait_for_rank(0)
    job.agents[1].kill()
    assert job.codes()[0] == EXIT_REQUEUE
    assert job.word(0)["cause"] == "infra"
    assert "node 1 (" in job.word(0)["reason"]
    (ended,) = job.events("agent_ended")  # Slurm's KILL may come before that
    assert (job.folder / "slurm" / "again.0").stat().st_mtime <= ended["time"]
    job.start(1)
    job.wait_for_rank(1)
    job.agents[-1].kill()
    assert job.codes()[0] == 1  # the budget was one
    assert job.word(1) is None


def test_the_word_of_a_node_that_was_frozen_does_not_replace_the_leaders(make: Any) -> None:
    """It says that node 0 has closed the connection; why, node 0 has said long before."""
    job = make(SAVES="1")
    job.start(0)
    job.wait_for_rank(0)
    job.agents[1].send_signal(signal.SIGSTOP)
    assert job.agents[0].wait(timeout=PATIENCE) == EXIT_REQUEUE
    job.agents[1].send_signal(signal.SIGCONT)
    assert job.codes() == [EXIT_REQUEUE, EXIT_REQUEUE]
    assert re.search(r"was lost: no heartbeat for \d+ s$", job.word(0)["reason"])


def test_the_warning_before_the_time_limit_is_its_own_cause(make: Any) -> None:
    job = make(SAVES="1")
    job.start(0)
    job.wait_for_rank(0)
    for agent in job.agents:
        agent.send_signal(signal.SIGUSR2)
    assert job.codes() == [EXIT_REQUEUE, EXIT_REQUEUE]
    assert job.word(0) is None  # its budget is nought: the run ends


@pytest.mark.parametrize(
    ("shell", "codes", "exits"),
    [
        ("", [EXIT_REQUEUE] * 2, (95, None)),  # it has a handler for TERM only
        ("echo ready; sleep 600", [EXIT_REQUEUE] * 2, (None, "SIGTERM")),  # it has none
        ("trap 'sleep 2; exit 0' USR1; echo ready; while :; do sleep 0.1; done", [0, 0], (0, None)),
        ("trap 'sleep 2; exit 7' 10; echo ready; while :; do sleep 0.1; done", [1, 1], (7, None)),
    ],
)
def test_usr1_is_as_usr2_unless_the_program_handles_it(make: Any, shell: str, codes: list[int], exits: Any) -> None:
    job = make(SAVES="1", timeouts=None, shell=shell)
    job.start(0)
    job.wait_for_rank(0)
    everybody = [process.pid for process in marked(job.folder.name)]
    for pid in [*everybody, *(agent.pid for agent in job.agents)]:
        with contextlib.suppress(ProcessLookupError):  # the shell's trap has ended it
            os.kill(pid, signal.SIGUSR1)
    assert job.codes() == codes, job.logs()
    ends = [event for node in range(2) for event in job.events("rank_exit", node)]
    assert exits in [(event.get("code"), event.get("signal")) for event in ends]
    assert ((job.word(0) or {}).get("cause") == "timeout") == (codes[0] == EXIT_REQUEUE and not shell)


@pytest.mark.parametrize("saves", [{"SAVES": "1"}, {}], ids=["saves", "saves nothing"])
def test_a_start_that_gained_nothing_by_its_time_limit_is_the_last(make: Any, saves: dict[str, str]) -> None:
    job = make(timeouts=None, **saves)
    job.start(0)
    job.wait_for_rank(0)
    for agent in job.agents:
        agent.send_signal(signal.SIGUSR2)
    assert job.codes() == [EXIT_REQUEUE, EXIT_REQUEUE]
    given_up = job.events("gave_up")
    if saves:
        assert (job.word(0) or {})["cause"] == "timeout"
        assert given_up == []
    else:
        assert job.word(0) is None
        assert [event["cause"] for event in given_up] == ["no_progress"]
        assert "its time limit of 10 min came before it had saved anything new" in given_up[0]["reason"]


@pytest.mark.parametrize(
    "method",
    [
        "fork",
        pytest.param(
            "spawn",
            marks=pytest.mark.full(
                "tests/local/test_slurm_agents.py::test_workers_live_through_the_warning_that_every_process_gets[fork]"
            ),
        ),
    ],
)
def test_workers_live_through_the_warning_that_every_process_gets(make: Any, method: str) -> None:
    job = make(LOADER, method)
    job.start(0)
    job.wait_for_rank(0)
    everybody = [process.pid for process in marked(job.folder.name)]
    assert len(everybody) >= 2 * (1 + 1 + 2)  # two nodes: launcher, rank, workers
    for pid in [*everybody, *(agent.pid for agent in job.agents)]:
        os.kill(pid, signal.SIGUSR2)
    assert job.codes() == [EXIT_REQUEUE, EXIT_REQUEUE]
    exits = [event["code"] for node in range(2) for event in job.events("rank_exit", node)]
    assert exits == [95, 95], job.logs()


def test_starts_that_gain_nothing_come_to_an_end(make: Any) -> None:
    job = make()
    for number in range(4):
        job.start(number)
        job.wait_for_rank(number)
        job.agents[-2].send_signal(signal.SIGTERM)
        assert job.codes() == [EXIT_REQUEUE, EXIT_REQUEUE]
    job.start(4)
    assert job.codes() == [1, 0]  # srun ends all agents once one has failed, and node 0 has to record the reason
    given_up = job.events("gave_up")
    assert [event["cause"] for event in given_up] == ["no_progress"]
    assert given_up[0]["reason"].startswith(
        "3 starts in a row ended without a new checkpoint; the last: Slurm took its nodes away"
    )
    assert job.events("gave_up", node=1) == []


def test_a_task_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "node.pyz").write_bytes(node_archive())
    done = subprocess.run(
        [sys.executable, str(tmp_path / "node.pyz"), "slurm", str(tmp_path)],
        env={**os.environ, "SLURM_NODEID": "0"}, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"orch: can't take this node's task from {tmp_path}: ")
    assert "Traceback" not in done.stderr
