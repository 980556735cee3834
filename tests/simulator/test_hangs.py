"""Ranks that wait, and ranks that hang, in virtual time: who is blamed for it, and when nobody is."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from orchestrator.protocol.layout import attempt_folder, node_folder
from tests.simulator.gang import OWN, Gang

HANG = {"action": "auto", "train": 60.0, "medians": 10.0, "other": 400.0}
NODES = 3


def ran(story: Callable[[Gang], Awaitable[None]], folder: Path) -> Gang:
    """A gang of three nodes of one rank each, to its end."""
    for node in range(NODES):
        (folder / f"nodes/{node}").mkdir(parents=True)
    return Gang(folder, NODES, "7", hang=HANG).run(story)


def beat(gang: Gang, step: int, phase: str = "train", ranks: Iterable[int] = range(NODES)) -> None:
    """Have ranks write their heartbeats."""
    for rank in ranks:
        folder = Path(attempt_folder(node_folder(gang.tasks[rank].run_dir, rank), gang.launcher_attempt))
        loss = 0.5 if phase == "train" else None
        (folder / f"beat_{rank}").write_text(
            json.dumps({"step": step, "phase": phase, "time": asyncio.get_running_loop().time(), "loss": loss})
        )


async def step(gang: Gang, steps: Iterable[int]) -> None:
    """Have all ranks make these steps, one a second."""
    for number in steps:
        beat(gang, number)
        await asyncio.sleep(1.0)


async def started(gang: Gang) -> None:
    """Return when the ranks of an attempt run on all nodes."""
    await gang.until("go")
    while any(not gang.launcher(node).running for node in range(NODES)):
        await asyncio.sleep(0.1)


def hangs(gang: Gang) -> list[int]:
    """The ranks that a node has recorded as hung."""
    return [event["rank"] for node in range(NODES) for event in gang.events(node, "stall") if event["full"]]


@pytest.mark.parametrize("phase", ["save", "eval", "compile"])
def test_ranks_may_wait_for_one_that_is_in_a_longer_phase_alone(phase: str, tmp_path: Path) -> None:
    async def story(gang: Gang) -> None:
        await started(gang)
        await step(gang, range(1, 20))
        for number in (20, 40):
            beat(gang, number)
            beat(gang, number, phase, [0])
            await asyncio.sleep(300)
            beat(gang, number, "train", [0])
            await asyncio.sleep(40)  # the next step may be slow
            await step(gang, range(number + 1, number + 20))
        gang.finish()

    gang = ran(story, tmp_path)
    assert gang.end["outcome"] == "succeeded"
    assert gang.events(0, "restart", "attempt_failed") == []
    assert hangs(gang) == []


@pytest.mark.parametrize(("phase", "culprit", "words"), [
    ("save", 0, "rank 0 has stood still in save at step 20 for 400 s (limit 400 s)"),
    ("train", 2, "rank 2 has stood still in train at step 19 for 60 s (limit 60 s)"),
])  # fmt: skip
def test_a_hang_is_found_after_the_limit_of_the_phase(phase: str, culprit: int, words: str, tmp_path: Path) -> None:
    async def story(gang: Gang) -> None:
        await started(gang)
        await step(gang, range(1, 20))
        beat(gang, 20, ranks=[each for each in range(NODES) if each != culprit])
        if phase == "save":
            beat(gang, 20, phase, [culprit])
        await started(gang)
        await step(gang, range(20, 30))
        gang.finish()

    gang = ran(story, tmp_path)
    (failed,) = gang.events(0, "attempt_failed")
    assert (failed["culprit"]["rank"], failed["cause"]) == (culprit, "infra")
    assert failed["culprit"]["error"]["message"] == words
    assert gang.end["outcome"] == "succeeded"


def test_a_run_whose_folder_is_removed_on_node_0_reports_that_and_no_hang(tmp_path: Path) -> None:
    async def story(gang: Gang) -> None:
        await started(gang)
        await step(gang, range(1, 20))
        shutil.rmtree(tmp_path)
        (tmp_path / "nodes/0").mkdir(parents=True)  # as the event log does
        await asyncio.sleep(300)  # no heartbeat of any rank is seen: rank 0 may be saving
        gang.fail(0, OWN)

    gang = ran(story, tmp_path)
    assert hangs(gang) == []
    assert [(event["of"], event["path"]) for event in gang.events(0, "folder_lost")][:1] == [(0, str(tmp_path))]
    assert (gang.end["outcome"], gang.end["cause"]) == ("failed", "infra")
    assert "lost the run's folder" in gang.end["reason"]
