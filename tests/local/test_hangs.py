"""Ranks that stand still without ending: found by their beats, blamed, and started again; slow ones are left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.looking.run import wait
from orchestrator.runs.state import RunState
from tests.patience import PATIENCE
from tests.testbed.machine import wait_until

from .conftest import Orch

# Beats as a training sends them, and a meeting of all ranks at each step, without torch.
MEETING = """
import os, re, signal, socket, sys, threading, time
from pathlib import Path
from orchestrator.training.progress.heartbeat import Heartbeat, HeartbeatFile

rank, ranks, first = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["ORCH_ATTEMPT"] == "0"
beats = HeartbeatFile(Path(os.environ["ORCH_BEAT_FILE"]))
place = f"\\0{os.environ['ORCH_RUN_ID']}.{os.environ['ORCH_ATTEMPT']}"

def beat(step, phase="train"):
    beats.write(Heartbeat(step=step, total=60, phase=phase, rate=9.0))  # the rate tells that there was a step

def serve(listening):
    peers = [listening.accept()[0] for _ in range(ranks)]
    while all(peer.recv(1) for peer in peers):
        for peer in peers:
            peer.sendall(b"x")

def join():
    if rank == 0:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(place)
        listening.listen()
        threading.Thread(target=serve, args=[listening], daemon=True).start()
    while True:
        try:
            meeting = socket.socket(socket.AF_UNIX)
            meeting.connect(place)
            return meeting
        except ConnectionRefusedError:  # rank 0 is not there yet
            time.sleep(0.02)
"""

# Rank 1 stands still at step 30 of the first attempt, in the way that $HOW says.
STAND_STILL = f"""{MEETING}
meeting, nobody = join(), socket.socketpair()

def barrier():
    meeting.sendall(b"x")
    assert meeting.recv(1)

def other_barrier():
    nobody[0].recv(1)

for step in range(1, 61):
    if rank == 1 and first and step == 30:
        how = os.environ["HOW"]
        if how == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "sleep":
            time.sleep(600)
        if how == "gil":
            re.match(r"(a+)+$", "a" * 64 + "b")
        if how == "elsewhere":
            other_barrier()
    barrier()
    beat(step)
    time.sleep(0.02)
beat(60, "done")
print("went through", flush=True)
"""
JOB = "script: still.py\nenv: {HOW: null}\nhang: {train: 6s, medians: 2, other: 60s}\nretry: {infra: 1}\n"
UNDER_TORCHRUN = pytest.mark.full(
    "tests/local/test_hangs.py::test_the_rank_that_stands_still_is_blamed_and_the_gang_restarted",
    "tests/local/test_stacks.py::test_equal_stacks_are_shown_once",
)


@pytest.mark.parametrize(
    ("how", "launcher"),
    [
        ("stopped", "fork"),
        ("gil", "exec"),
        ("elsewhere", "fork"),
        pytest.param("sleep", "torchrun", marks=UNDER_TORCHRUN),
    ],
)
def test_the_rank_that_stands_still_is_blamed_and_the_gang_restarted(
    orch: Orch, project, how: str, launcher: str
) -> None:
    if launcher == "torchrun":
        orch = orch.with_torch
    folder = project(still_py=STAND_STILL, still_yaml=f"{JOB}launcher: {launcher}\n")
    done = orch("submit", str(folder / "still.yaml"), "-p", "local-2x2", "-f", "--env", f"HOW={how}")
    assert done.code == 0, done.err
    run = orch.run()
    failed = orch.events(run, "attempt_failed")
    assert len(failed) == 1
    culprit = failed[0]["culprit"]
    assert culprit["error"]["type"] == "Hang"
    assert culprit["rank"] == 1, culprit
    assert ("SIGSTOP" in culprit["error"]["message"]) == (how == "stopped")
    stacks = {path.name: path.read_text() for path in Path(run.path).glob("nodes/*/attempt_0/stacks_*.txt")}
    assert set(stacks) == {f"stacks_{rank}.txt" for rank in range(4)}
    for rank in range(4):
        if (how, rank) != ("stopped", 1):
            assert "still.py" in stacks[f"stacks_{rank}.txt"]


# As NCCL does it: a call returns at once, and the rank waits elsewhere; a thread listens at the recorder's pipe. Rank 1
# leaves out one collective, and waits in the same line as the others.
LEAVE_OUT = """
import os, select, sys, threading, time, torch, torch.distributed as dist
from orchestrator.training import run

def listen():
    pipe = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe"
    os.mkfifo(pipe)
    asked = os.open(pipe, os.O_RDWR)
    while os.read(asked, 128):
        dump = os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank)
        with open(dump + ".partial", "wb") as file:
            file.write(torch._C._distributed_c10d._dump_fr_trace(includeStackTraces=False))
        os.replace(dump + ".partial", dump)

dist.init_process_group("gloo")
rank, first = dist.get_rank(), os.environ["ORCH_ATTEMPT"] == "0"
threading.Thread(target=listen, daemon=True).start()
for step in range(1, 31):
    leaves_out = rank == 1 and first and step == 20
    work = None if leaves_out else dist.all_reduce(torch.ones(1), async_op=True)
    while leaves_out or not work.is_completed():
        time.sleep(0.005)
    run.step(step, 30)
    time.sleep(0.02)
run.phase("done")
dist.barrier()
dist.destroy_process_group()
"""


def test_the_rank_that_never_entered_a_collective_is_blamed_by_the_flight_recorders(orch: Orch, project) -> None:
    folder = project(out_py=LEAVE_OUT, out_yaml=JOB.replace("still.py", "out.py"))
    done = orch.with_torch("submit", str(folder / "out.yaml"), "-p", "local-2x2", "-f", "--env", "HOW=")
    assert done.code == 0, done.err
    run = orch.run()
    (failed,) = orch.events(run, "attempt_failed")
    words = "it never entered all_reduce 20, in which ranks 0, 2, 3 of process group 0 wait"
    assert words in failed["culprit"]["error"]["message"]
    assert failed["culprit"]["rank"] == 1
    dumps = {path.name for path in run.path.glob("nodes/*/attempt_0/flight_*")}
    assert dumps == {f"flight_{rank}" for rank in range(4)}  # and no pipe


SLOW = f"""{MEETING}
time.sleep(3)  # a slow start
beats.write(Heartbeat())
time.sleep(4)  # a slow first step
beat(1)
for name in ("eval", "save"):
    beat(1, name)
    time.sleep(3.5)
beat(2)
beat(2, "done")
"""


def test_slow_phases_of_three_limits_are_left_alone(orch: Orch, project) -> None:
    folder = project(slow_py=SLOW, slow_yaml="script: slow.py\nhang: {train: 1s, medians: 1, other: 60s}\n")
    done = orch("submit", str(folder / "slow.yaml"), "-p", "local", "-f")
    assert done.code == 0, done.err
    assert orch.events(orch.run(), "stall") == []


# Rank 0's disk is slow: six limits for a save of rank 0 alone, then until rank 1 says that it takes part in the save.
SLOW_DISK = """
import os, time, torch, torch.distributed as dist
from orchestrator.training import run
from orchestrator.training.checkpoint import format as checkpoints

dist.init_process_group("gloo")
write, beat = checkpoints.write, os.environ["ORCH_BEAT_FILE"]
of_rank_1 = beat.replace("nodes/0", "nodes/1").replace("beat_0", "beat_1")

def slowly(folder, contents, manifest):
    if manifest.step == 2:
        time.sleep(6)
    while manifest.step == 3 and '"phase": "save"' not in open(of_rank_1).read():
        time.sleep(0.02)
    return write(folder, contents, manifest)

checkpoints.write = slowly
model = torch.nn.Linear(2, 2)
for step in range(1, 4):
    dist.all_reduce(torch.ones(1))
    run.step(step, 3, 1.0)
    if step == 2:
        run.save({"model": model.state_dict()}, step)
run.after_step(step, 3, 1.0, model=model)
run.phase("done")
dist.barrier()
dist.destroy_process_group()
"""


LIMITS = "hang: {train: 1s, medians: 1, other: 3m}\n"


def test_ranks_that_wait_for_a_slow_save_are_no_hang(orch: Orch, project) -> None:
    folder = project(disk_py=SLOW_DISK, disk_yaml=f"script: disk.py\nresources: {{time: 3m}}\n{LIMITS}")
    nodes = ("--set", "profile.nproc_per_node=1")
    done = orch.with_torch("submit", str(folder / "disk.yaml"), "-p", "local-2x2", *nodes, "-f")
    assert done.code == 0, done.err
    run = orch.run()
    assert orch.events(run, "restart") == []
    assert [stall["rank"] for stall in orch.events(run, "stall") if stall["full"]] == []
    assert {path.name for path in run.path.rglob("step_*")} == {"step_00000002", "step_00000003"}


def test_a_program_without_beats_is_only_reported(orch: Orch, project) -> None:
    folder = project(
        quiet_py="import os, sys, time\nwhile not os.path.exists(sys.argv[1]):\n    time.sleep(0.02)\n",
        quiet_yaml="script: quiet.py\nhang: {train: 1s, other: 3s}\n",
    )
    go = folder / "go"
    run = orch.submit(str(folder / "quiet.yaml"), "-p", "local", "--set", f"job.args={json.dumps([str(go)])}")

    def look(now: RunState) -> None:
        stacks = list(run.path.glob("nodes/0/attempt_0/stacks_*.txt"))
        if now.detail.startswith("hung? rank") and len(stacks) == 2:
            go.touch()

    assert wait(run, look, timeout=PATIENCE).state == "succeeded"
    assert go.exists()
    assert orch.events(run, "restart") == []


def test_a_program_without_beats_is_restarted_when_the_job_asks_for_it(orch: Orch, project) -> None:
    program = "import os, time\nif os.environ['ORCH_ATTEMPT'] == '0':\n    time.sleep(600)\n"
    folder = project(
        quiet_py=program,
        quiet_yaml="script: quiet.py\nhang: {action: restart, other: 8s}\nretry: {infra: 1}\n",
    )
    assert orch("submit", str(folder / "quiet.yaml"), "-p", "local", "-f").code == 0
    assert [event["attempt"] for event in orch.events(orch.run(), "restart")] == [1]


def test_a_hang_is_only_reported_when_the_job_says_so(orch: Orch, project) -> None:
    program = f"""{MEETING}
for step in range(1, 31):
    beat(step)
    time.sleep(0.15)
    while step == 20 and not os.path.exists(os.environ["GO"]):
        time.sleep(0.02)
beat(30, "done")
"""
    folder = project(
        nap_py=program, nap_yaml="script: nap.py\nhang: {action: report, train: 4s, medians: 1, other: 60s}\n"
    )
    go = folder / "go"
    run = orch.submit(str(folder / "nap.yaml"), "-p", "local", "--env", f"GO={go}")
    wait_until(lambda: any(stall["full"] for stall in orch.events(run, "stall")), "the whole of its limit")
    go.touch()
    assert wait(run, timeout=PATIENCE).state == "succeeded"
    assert any(not stall["full"] for stall in orch.events(run, "stall"))
    assert orch.events(run, "restart") == []
