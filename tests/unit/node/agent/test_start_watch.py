"""A start in which ranks wait for processes that do not join them is explained."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.node.agent.start_watch import SECONDS, StartWatch, why_it_waits
from orchestrator.protocol.rank_reports import RankStack
from orchestrator.protocol.samples import GpuSample, RankSample, Sample
from orchestrator.protocol.typed import read

from .test_leader import Gang

INIT = [
    'File "/x/torch/distributed/rendezvous.py", line 210 in _create_c10d_store',
    'File "/x/torch/distributed/distributed_c10d.py", line 1700 in init_process_group',
    'File "train.py", line 7 in main',
]
SPAWN = [
    'File "/lib/python3.11/selectors.py", line 415 in select',
    'File "/x/torch/multiprocessing/spawn.py", line 170 in join',
    'File "train.py", line 30 in <module>',
]
ELSEWHERE = ['File "train.py", line 40 in prepare']


def stack(frames: list[str]) -> dict[str, Any]:
    return {"state": "S", "in_collective": None, "where": frames[-1], "frames": frames}


def sample(cpu: float = 0.0, attempt: int = 0, **values: Any) -> Sample:
    return Sample(seconds=2.0, attempt=attempt, ranks=(RankSample(rank=0, cpu=cpu, **values),))


def test_a_minute_without_computation_is_reported_once_and_its_end_too() -> None:
    watch = StartWatch()
    told = [watch.add(sample()) for _ in range(40)]
    assert [seconds for seconds in told if seconds is not None] == [SECONDS]
    assert [watch.add(sample(1.0)), watch.add(sample(1.0)), watch.add(sample())] == [0.0, None, None]


@pytest.mark.parametrize(
    "busy",
    [
        sample(0.5),
        sample(phase="train"),
        sample(attempt=1),
        Sample(seconds=2.0),
        Sample(seconds=2.0, ranks=(RankSample(),), gpus=(GpuSample(use=90.0),)),
    ],
)
def test_computation_heartbeats_and_another_attempt_start_the_count_anew(busy: Sample) -> None:
    watch = StartWatch()
    told = [watch.add(each) for each in [*[sample()] * 29, busy, *[sample(attempt=busy.attempt)] * 28]]
    assert set(told) == {None}


@pytest.mark.parametrize(
    ("stacks", "port", "words"),
    [
        ([INIT, INIT], 4242, f"rank 0 ({INIT[-1]}) waits in init_process_group, and for 60 s no process has connected"),
        ([SPAWN], 4242, f"rank 0 ({SPAWN[-1]}) waits for processes that it has spawned, and for 60 s no process"),
        ([INIT, ELSEWHERE], 0, f"rank 0 ({INIT[-1]}) waits in init_process_group for rank 1"),
        ([INIT, INIT], 0, ""),
        ([SPAWN], 0, ""),
        ([ELSEWHERE], 4242, ""),
        ([[]], 4242, ""),
    ],
)
def test_for_whom_the_ranks_wait(stacks: list[list[str]], port: int, words: str) -> None:
    seen = {rank: stack(frames) if frames else {} for rank, frames in enumerate(stacks)}
    found = why_it_waits(
        {rank: read(RankStack, each) for rank, each in seen.items()}, range(len(stacks)), [], 60.0, port
    )
    assert found.startswith(words) if words else found == ""


def test_the_leader_asks_where_the_ranks_stand_and_records_the_explanation() -> None:
    gang = Gang(nnodes=1, hang={"action": "restart"})
    gang.run()
    gang.exit(1, {"code": 0, "signal": None})
    gang.say(0, "waits", attempt=0, seconds=60.0, unused_port=0)
    assert len(gang.told("stacks")) == 1
    gang.say(0, "stacks", ranks={"0": stack(INIT)})
    (told,) = gang.recorded("unjoined")
    assert told["words"].endswith("waits in init_process_group for rank 1; rank 1 ended")
    gang.say(0, "stall", attempt=0, rank=0, phase="output", step=0, seconds=1800.0, limit=1800.0, full=True)
    gang.say(0, "stacks", ranks={"0": stack(INIT)})
    gang.pass_time(4)
    (hung,) = gang.leader.current.exits[1:]
    assert str(hung.error and hung.error.message).endswith(f"; {told['words']}")


def test_an_explanation_is_withdrawn_when_a_rank_computes() -> None:
    gang = Gang(nnodes=1)
    gang.run()
    gang.say(0, "waits", attempt=0, seconds=60.0, unused_port=4242)
    gang.say(0, "stacks", ranks={"0": stack(INIT), "1": stack(INIT)})
    gang.say(0, "waits", attempt=0, seconds=0.0, unused_port=0)
    assert [bool(event["words"]) for event in gang.recorded("unjoined")] == [True, False]
