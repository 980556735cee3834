"""What an agent tells of its samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.node.agent.sampling.loop import Sampling, Started
from orchestrator.protocol.events import SamplingFailed, of
from orchestrator.protocol.messages import Unused
from orchestrator.protocol.samples import RankSample, Sample
from orchestrator.protocol.task import NodeTask, Program

IDLE = {"gpu": 5.0, "cpu": 10.0, "after": 20, "do": "report"}


def sampling_of(folder: Path, told: list[dict[str, Any]], events: list[dict[str, Any]]) -> Sampling:
    (folder / "nodes" / "0").mkdir(parents=True, exist_ok=True)
    task = NodeTask(
        "r-1", 0, 1, ("localhost",), 1, str(folder), str(folder), Program("command", "true"), "exec", "gloo", "python3",
        ("127.0.0.1",), (20000, 20000), idle=IDLE,
    )  # fmt: skip
    return Sampling(task, Started, told.append, events.append)


def test_an_idle_node_is_told_once_for_each_attempt_and_that_it_is_busy_again(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    sampling = sampling_of(tmp_path, told, [])
    assert sampling.idle is not None

    def pass_time(seconds: int, attempt: int, cpu: float) -> None:
        assert sampling.idle is not None
        for _ in range(seconds // 2):
            rank = RankSample(0, cpu=cpu)
            sampling._watch(sampling.idle, Sample(seconds=2.0, attempt=attempt, ranks=(rank,)))

    pass_time(60, 0, 0.01)
    assert [(each.kind, each.attempt, each.use) for each in told if isinstance(each, Unused)] == [
        ("unused", 0, "CPU 1 %")
    ]
    pass_time(18, 1, 0.01)
    assert len(told) == 1
    pass_time(60, 1, 0.01)
    pass_time(60, 1, 0.9)
    assert [(each.kind, getattr(each, "attempt", None)) for each in told[1:]] == [("unused", 1), ("used", None)]


def test_a_disk_that_takes_no_samples_is_told_once_and_ends_nothing(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    sampling = sampling_of(tmp_path, [], events)
    (tmp_path / "nodes" / "0" / "samples.jsonl").mkdir()
    for _ in range(2):
        sampling.pending = [Sample(seconds=2.0)]
        assert sampling.end() is None
    (failed,) = of(events, SamplingFailed)
    assert "samples.jsonl" in failed.reason
