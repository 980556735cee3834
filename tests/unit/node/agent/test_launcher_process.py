"""The agent's side of the launcher."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.node.agent import launcher_process
from orchestrator.node.agent.launcher_process import LauncherProcess, launcher_environment
from orchestrator.protocol.messages import LauncherGone, Report, ReportStacks
from tests.local.test_agents import task_in
from tests.patience import PATIENCE


def test_an_order_that_is_sent_before_the_launcher_is_started_reaches_it_after_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_process, "after_setup", lambda *_: ["sh", "-c", "cat > orders"])
    reports: list[Report] = []

    async def main() -> None:
        (tmp_path / "nodes/0").mkdir(parents=True)
        launcher = LauncherProcess(task_in(tmp_path), reports.append)
        launcher.send(ReportStacks())
        await launcher.start(1, 0)
        assert launcher.process is not None
        assert launcher.process.stdin is not None
        launcher.process.stdin.close()
        await asyncio.wait_for(launcher.reader, PATIENCE)

    asyncio.run(main())
    task, order = map(json.loads, (tmp_path / "orders").read_text().splitlines())
    assert (task["run_id"], order) == ("by-hand", {"kind": "stacks"})
    assert [type(each) for each in reports] == [LauncherGone]


def test_a_batch_file_finds_no_number_of_threads_for_the_ranks_that_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    task = task_in(tmp_path)
    assert "OMP_NUM_THREADS" in launcher_environment(task, 1)
    own = replace(task, program=replace(task.program, own_ranks=True))
    assert "OMP_NUM_THREADS" not in launcher_environment(own, 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert launcher_environment(own, 1)["OMP_NUM_THREADS"] == "3"
