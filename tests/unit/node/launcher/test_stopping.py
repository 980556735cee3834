"""The launcher's stop: who has ended by it, and who by himself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.node.launcher import launcher as module
from orchestrator.node.launcher.launcher import Launcher, RankProcess
from orchestrator.node.launcher.rank.log import RankLog
from orchestrator.protocol.messages import Stop
from orchestrator.protocol.rank_reports import RankEnd
from orchestrator.protocol.task import NodeTask


class Started:
    """A launcher whose one rank is a command, and what it has told its agent."""

    def __init__(self, folder: Path, argv: list[str]) -> None:
        self.child = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
        self.told, reports = os.pipe()
        start = cast("Any", SimpleNamespace(rank=0, kind="script", members=None))
        self.launcher = Launcher(
            cast("NodeTask", SimpleNamespace(container=None, secrets={}, env={})), orders=-1, reports=reports
        )
        self.launcher.ranks[0] = RankProcess(start, self.child.pid, RankLog(str(folder / "log"), 1000), -1)

    def until_it_has_ended(self) -> None:
        os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT)

    def reports(self) -> list[dict[str, Any]]:
        """Everything told, once the launcher has reaped its rank."""
        self.launcher._reap()
        os.close(self.launcher.reports)
        with open(self.told, encoding="utf-8") as told:
            lines = [json.loads(line) for line in told]
        self.launcher.selector.close()
        with self.child:
            return lines


@pytest.fixture(autouse=True)
def _no_report_of_the_rank_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_: Any, code: int, __: Any) -> RankEnd:
        return RankEnd(0, code, signal.Signals(-code).name if code < 0 else None)

    monkeypatch.setattr(module, "failure_report", ended)


def test_a_rank_that_had_ended_was_not_stopped_and_nobody_is_killed_for_it_later(tmp_path: Path) -> None:
    started = Started(tmp_path, ["false"])
    started.until_it_has_ended()
    started.launcher._stop(Stop(0, 2.0))
    ended, idle = started.reports()
    assert (ended["kind"], ended["code"], ended.get("sent"), idle["kind"]) == ("exit", 1, None, "idle")
    assert started.launcher.kill_at is None
    started.launcher._stop(Stop(0, 2.0))  # once there is none: the next attempt's are not to be killed for it
    assert started.launcher.kill_at is None


@pytest.mark.parametrize("by_others", [None, signal.SIGKILL], ids=["by us", "by somebody else"])
def test_the_report_of_a_rank_that_was_asked_to_end_has_the_signal_that_ended_it(
    tmp_path: Path, by_others: signal.Signals | None
) -> None:
    deaf = 'trap "" TERM; echo up; while :; do sleep 0.05; done' if by_others else "echo up; exec sleep 600"
    started = Started(tmp_path, ["sh", "-c", deaf])
    assert started.child.stdout is not None
    assert started.child.stdout.readline() == b"up\n"
    started.launcher._stop(Stop(0, 60.0))
    if by_others is not None:
        os.kill(started.child.pid, by_others)
    started.until_it_has_ended()
    ended = started.reports()[0]
    assert (ended["sent"], ended["signal"]) == ("SIGTERM", (by_others or signal.SIGTERM).name)


def test_a_rank_that_does_not_end_in_time_is_killed_by_us(tmp_path: Path) -> None:
    started = Started(tmp_path, ["sh", "-c", 'trap "" TERM; echo up; while :; do sleep 0.05; done'])
    assert started.child.stdout is not None
    assert started.child.stdout.readline() == b"up\n"
    started.launcher._stop(Stop(0, 0.0))
    started.launcher._kill_ranks()
    started.until_it_has_ended()
    ended = started.reports()[0]
    assert (ended["signal"], ended["sent"]) == ("SIGKILL", "SIGKILL")
