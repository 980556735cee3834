"""Random failures of random ranks at random steps: each is blamed rightly, each restart goes on, the weights are equal.

The culprit writes down who it is and how it is about to end; the others die of it ("Connection closed by peer"), now
and then long before it does.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch

from orchestrator.looking.run import wait
from orchestrator.runs.store import RunDir, read_lines
from orchestrator.training.checkpoint.format import load, newest
from tests.local.conftest import Orch
from tests.patience import PATIENCE

from .conftest import FULL, SEED, Soak

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600 if FULL else 300)]  # also on a busy machine

SAVE_EVERY = 3
RANKS = 4
KINDS = ("SIGKILL", "SIGSEGV", "exit", "exception")
MOMENTS = ("before_join", "before_resume", "forward", "reduced", "stepped", "victims_first")

PROGRAM = """
import json, os, signal, socket, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from orchestrator.training import run

torch.set_num_threads(1)
rank, attempt = int(os.environ["RANK"]), int(os.environ["ORCH_ATTEMPT"])
plan = json.load(open("plan.json"))
mine = next((f for f in plan["failures"] if f["attempt"] == attempt and f["rank"] == rank), None)


def write(name, **values):
    with open(f"{os.environ['ORCH_RUN_DIR']}/{name}", "a") as file:
        file.write(json.dumps({"attempt": attempt, "rank": rank, **values}) + "\\n")
        file.flush()
        os.fsync(file.fileno())


def hang_up():
    # The peers see their connections go, and die of it, while this rank still lives.
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as copy:
                    copy.getpeername()  # OSError for one that listens
                    copy.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def moment(name, offset=None):
    if mine is None or mine["moment"] != name or (offset is not None and mine["offset"] != offset):
        return
    write("culprits.jsonl", kind=mine["kind"])
    if name == "victims_first":
        hang_up()
        time.sleep(mine["delay"])
    if mine["kind"] == "exit":
        os._exit(17)
    if mine["kind"] == "exception":
        raise ValueError("a mistake of this rank's own: connection closed by peer")
    os.kill(os.getpid(), getattr(signal, mine["kind"]))
    time.sleep(10)


moment("before_join")
dist.init_process_group("gloo")
torch.manual_seed(7)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 1))
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
# DDP sums in another order before its first backward pass than after it, so every attempt makes one that counts
# nothing before it takes its weights.
model(torch.ones(4, 8)).sum().backward()
torch.manual_seed(rank)
optimizer.zero_grad()
moment("before_resume")
first = run.resume(model=model, optimizer=optimizer)
if rank == 0:
    write("resumes.jsonl", first=first)
for step in range(first + 1, plan["total"] + 1):
    chance = torch.Generator().manual_seed(step * 100 + rank)
    inputs = torch.randn(16, 8, generator=chance)
    loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
    moment("forward", step - first)
    optimizer.zero_grad()
    loss.backward()
    moment("reduced", step - first)
    optimizer.step()
    moment("stepped", step - first)
    moment("victims_first", step - first)
    run.after_step(step, plan["total"], loss, save_every=plan["save_every"], model=model, optimizer=optimizer)
dist.barrier()
dist.destroy_process_group()
"""

JOB = """
script: train.py
retry: {user_error: 1000, infra: 1000}
env: {OMP_NUM_THREADS: "1"}
warm_imports: [torch._dynamo, orchestrator.training.run]
"""


def plan_failures(chance: random.Random, count: int) -> dict[str, Any]:
    """Failures of the attempts 0 to count - 1, each so many steps after the attempt's first.

    An attempt whose offset is 1 makes no progress; three of these in a row would end the run.
    """
    failures: list[dict[str, Any]] = []
    stalled = 0
    for attempt in range(count):
        stays = stalled < 2 and chance.random() < 0.25
        stalled = stalled + 1 if stays else 0
        failures.append(
            {
                "attempt": attempt,
                "rank": chance.randrange(RANKS),
                "kind": chance.choice(KINDS),
                "moment": chance.choice(MOMENTS if stays else MOMENTS[2:]),
                "offset": 1 if stays else SAVE_EVERY + chance.randint(1, 2 * SAVE_EVERY),
                "delay": round(chance.uniform(0.1, 0.6), 2),
            }
        )
    total = sum(failure["offset"] for failure in failures) + 2 * SAVE_EVERY
    return {"failures": failures, "total": total, "save_every": SAVE_EVERY}


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    found = newest(run.path / "checkpoints")
    assert found is not None
    state, _ = load(found.path)
    return dict(state["objects"]["model"])


def undisturbed(plan: dict[str, Any]) -> dict[str, Any]:
    return {**plan, "failures": []}


def check_run(soak: Soak, orch: Orch, run: RunDir, plan: dict[str, Any]) -> None:
    """Every attempt's culprit, and every attempt's first step."""
    count = len(plan["failures"])
    said = {line["attempt"]: line for line in read_lines(run.path / "culprits.jsonl")}
    blamed = {event["attempt"]: event for event in orch.events(run, "attempt_failed")}
    restarts = {event["attempt"]: event["from_step"] for event in orch.events(run, "restart")}
    resumed = {line["attempt"]: line["first"] for line in read_lines(run.path / "resumes.jsonl")}
    soak.check(sorted(blamed) == list(range(count)), f"attempts that failed: {sorted(blamed)}")
    soak.check(sorted(said) == list(range(count)), f"ranks that said they would fail: {said}")
    for planned in plan["failures"]:
        attempt = planned["attempt"]
        if attempt not in blamed or attempt not in said:
            continue
        culprit = blamed[attempt]["culprit"]
        error = culprit.get("error") or {}
        found = {
            17: "exit",
            1: "exception" if error.get("type") == "ValueError" else "?",
            None: culprit.get("signal"),
        }.get(culprit.get("code"), "?")
        right = (culprit["rank"], culprit["node"], found) == (planned["rank"], planned["rank"] // 2, planned["kind"])
        exits = [event for event in orch.events(run, "rank_exit") if event["attempt"] == attempt]
        soak.check(right, f"attempt {attempt}: {planned} failed, blamed: {json.dumps(culprit)[:1500]}\n{exits}")
    for attempt, first in resumed.items():
        if attempt > 0:
            soak.check(
                first == (restarts.get(attempt) or 0),
                f"attempt {attempt} went on at step {first}, the newest checkpoint was {restarts.get(attempt)}",
            )
    steps = [restarts[attempt] or 0 for attempt in sorted(restarts)]
    soak.check(steps == sorted(steps), f"a restart went back: {steps}")


@pytest.mark.full(
    "tests/local/test_failures.py::test_the_culprit_is_named_and_not_its_victims_and_exit_93_is_not_started_again",
    "tests/local/test_failures.py::test_a_killed_rank_is_restarted_from_the_checkpoint",
    "tests/local/test_training_strategies.py::test_a_resumed_training_equals_an_unbroken_one",
)
def test_random_failures_of_random_ranks(orch: Orch, project: Any, soak: Soak) -> None:
    runs, each = (4, 25) if soak.full else (1, 6)
    for number in range(runs):
        plan = plan_failures(soak.chance, each)
        folder = project(train_py=PROGRAM, train_yaml=JOB, plan_json=json.dumps(plan))
        run = orch.with_torch.submit(str(folder / "train.yaml"), "-p", "local-2x2", "--name", f"fails{number}")
        state = wait(run, timeout=max(PATIENCE, 20 * each))
        soak.check(state.state == "succeeded", f"{state.state}: {state.verdict} SOAK_SEED={SEED}")
        check_run(soak, orch, run, plan)

        project(plan_json=json.dumps(undisturbed(plan)))
        calm = orch.with_torch.submit(str(folder / "train.yaml"), "-p", "local-2x2", "--name", f"calm{number}")
        assert wait(calm, timeout=PATIENCE).state == "succeeded"
        if state.state == "succeeded":
            expected, found = weights(calm), weights(run)
            assert expected.keys() == found.keys()
            other = [name for name in expected if not torch.equal(expected[name], found[name])]
            soak.check(not other, f"run {number}: other weights than the undisturbed run's: {other}")
    soak.end("failures of a random rank (4 kinds, 6 moments), 2 nodes x 2 ranks", runs * each)
