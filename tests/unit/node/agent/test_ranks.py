"""A node's ranks, by what their launcher says of them."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.node.agent import ranks as module
from orchestrator.node.agent.ranks import Ranks, resolve_launcher
from orchestrator.node.agent.sampling.loop import Started
from orchestrator.node.system.event_log import EventLog, events_in
from orchestrator.node.system.host import network_here
from orchestrator.outcome.ends import Blame, blame_of
from orchestrator.protocol.events import InContainer, of
from orchestrator.protocol.layout import node_folder
from orchestrator.protocol.messages import (
    Imported,
    LauncherGone,
    OfAttempt,
    RankEnded,
    RanksIdle,
    Report,
    Stalled,
    Trouble,
)
from orchestrator.protocol.task import NodeTask, Program
from orchestrator.protocol.typed import read


def ranks_of(folder: Path, told: list[Report], **values: Any) -> Ranks:
    node = Path(node_folder(str(folder), 0))
    node.mkdir(parents=True)
    task = NodeTask(
        "r-1", 0, 1, ("a",), 1, str(folder), str(folder), Program("script", "x"), "fork", "gloo", "python", (), (1, 2),
        **values,
    )  # fmt: skip
    return Ranks(task, 1, EventLog(str(node / "events.jsonl"), 0), told.append, lambda _: None, lambda _: None)


def test_the_gang_and_the_record_hear_no_secret(tmp_path: Path) -> None:
    told: list[Report] = []
    secrets, env = {"PIN": "canary-secret"}, {"HF_TOKEN": "canary-token", "WORD": "kept-word"}
    ranks = ranks_of(tmp_path, told, secrets=secrets, env=env)
    words = "kept-word canary-secret canary-token"
    error = {"type": "E", "message": words, "traceback": words}
    ended = {"rank": 1, "code": 1, "signal": None, "tail": [words], "error": error, "attempt": 0}
    said = [
        read(RankEnded, ended), Imported(0, failed=words), Trouble(words), LauncherGone(1, (words,)),
    ]  # fmt: skip
    for report in said:
        asyncio.run(ranks.report(report))
    assert [each.kind for each in told] == ["exit", "trouble", "trouble", "trouble"]
    assert json.dumps([each.to_json() for each in told]).count("kept-word *** ***") == 7
    folder = tmp_path / "nodes" / "0" / "attempt_0"
    folder.mkdir()
    beat = {"phase": "done", "saves": 2, "saves_failed": 1, "unsaved": words, "step": 1, "time": 1.0}
    (folder / "beat_0").write_text(json.dumps(beat))
    asyncio.run(ranks.report(read(RankEnded, {**ended, "rank": 0, "code": 0})))
    assert [each.unsaved for each in told if isinstance(each, RankEnded)][-1] == "kept-word *** ***"
    assert (
        "canary"
        not in json.dumps([each.to_json() for each in told]) + (tmp_path / "nodes" / "0" / "events.jsonl").read_text()
    )


def test_the_phase_of_a_stall_is_masked(tmp_path: Path) -> None:
    class Stalls:
        def news(self, *_: Any) -> list[OfAttempt]:
            return [Stalled(0, 0, "canary-secret", 1, 30.0, 60.0)]

    told: list[Report] = []
    ranks = ranks_of(tmp_path, told, secrets={"PIN": "canary-secret"})
    ranks.running, ranks.heartbeats = {0}, Stalls()  # type: ignore[assignment]
    ranks.look(0.0)
    assert [each.phase for each in told if isinstance(each, Stalled)] == ["***"]
    assert "canary" not in (tmp_path / "nodes" / "0" / "events.jsonl").read_text()


@pytest.mark.parametrize(("kills", "by"), [(1, ", from the kernel: its cgroup ran out of memory"), (0, "")])
def test_a_launcher_that_the_kernel_kills_for_memory_is_named_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int, by: str
) -> None:
    told: list[Report] = []
    monkeypatch.setattr(module, "oom_kills", lambda: 3)
    ranks = ranks_of(tmp_path, told)
    monkeypatch.setattr(module, "oom_kills", lambda: 3 + kills)
    asyncio.run(ranks.report(LauncherGone(-9)))
    assert [each.reason for each in told if isinstance(each, Trouble)] == [f"the launcher was killed by SIGKILL{by}"]


def test_a_report_that_can_not_be_handled_is_the_nodes_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Report] = []

    def fail(*_: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(module, "end_marked", fail)
    asyncio.run(ranks_of(tmp_path, told).report(RanksIdle(0)))
    (trouble,) = told
    assert isinstance(trouble, Trouble)
    assert "Too many open files" in trouble.reason


def test_a_launcher_that_a_real_time_signal_has_killed_is_named(tmp_path: Path) -> None:
    told: list[Report] = []
    asyncio.run(ranks_of(tmp_path, told).report(LauncherGone(-41)))
    assert [each.reason for each in told if isinstance(each, Trouble)] == ["the launcher was killed by signal 41"]


@pytest.mark.parametrize("told_to_stop", [False, True])
def test_ranks_whose_launcher_has_ended_have_failed_except_those_that_had_ended_well_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told_to_stop: bool
) -> None:
    told: list[Report] = []
    monkeypatch.setattr(module, "reap_orphans", lambda _: {501: 0})
    ranks = ranks_of(tmp_path, told)
    ranks.running, ranks.started, ranks.told_to_stop = {0, 1}, Started(0, {0: 500, 1: 501}), told_to_stop
    asyncio.run(ranks.report(LauncherGone(0)))
    ends = {each.rank: (each.code, each.signal) for each in told if isinstance(each, RankEnded)}
    assert ends == {0: (None, "SIGKILL"), 1: (None, "SIGKILL") if told_to_stop else (0, None)}


@pytest.mark.parametrize("is_overdue", [False, True])
def test_a_lost_launcher_ended_by_a_stop_only_if_this_agent_killed_it(tmp_path: Path, is_overdue: bool) -> None:
    told: list[Report] = []
    ranks = ranks_of(tmp_path, told)
    ranks.running, ranks.begun, ranks.told_to_stop = {0}, 0, True
    if is_overdue:
        ranks.stop_deadline = 10.0
        ranks.look(11.0)
    asyncio.run(ranks.report(LauncherGone(-9)))
    (end,) = [each for each in told if isinstance(each, RankEnded)]
    assert blame_of(end) is (Blame.STOPPED if is_overdue else Blame.KILLED)


def test_an_end_after_a_signal_to_the_agent_is_reported_with_the_signal_and_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Report] = []
    ranks = ranks_of(tmp_path, told)
    ranks.began, ranks.signal = 10.0, "SIGUSR2"
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 12.5))
    for rank, sent in ((0, ""), (1, "SIGTERM")):
        asyncio.run(ranks.report(RankEnded(0, rank, 0, sent=sent)))
    assert [(each.after, each.sent) for each in told if isinstance(each, RankEnded)] == [
        (2.5, "SIGUSR2"), (2.5, "SIGTERM"),
    ]  # fmt: skip
    assert not (tmp_path / "rank0.done").exists()


def test_the_container_of_a_launcher_is_recorded(tmp_path: Path) -> None:
    told: list[Report] = []
    (tmp_path / "cid").write_text("7c5e\n")
    ranks = ranks_of(tmp_path, told)
    ranks.launcher.container = {"runtime": "podman", "image": "torch:2", "cidfile": str(tmp_path / "cid")}
    asyncio.run(ranks.report(Imported(0)))
    found = of(events_in(f"{ranks.node_dir}/events.jsonl"), InContainer)
    assert [(each.runtime, each.image, each.id) for each in found] == [("podman", "torch:2", "7c5e")]
    assert told == []


@pytest.mark.parametrize(
    ("nnodes", "network", "is_trouble"), [(2, "another", True), (2, None, False), (1, "another", False)]
)
def test_a_container_in_another_network_is_trouble_if_other_nodes_must_reach_it(
    tmp_path: Path, nnodes: int, network: str | None, is_trouble: bool
) -> None:
    told: list[Report] = []
    ranks = ranks_of(tmp_path, told)
    ranks.task = replace(ranks.task, nnodes=nnodes)
    ranks.launcher.container = {"runtime": "podman", "cidfile": ""}
    asyncio.run(ranks.report(Imported(0, network=network or network_here())))
    assert [type(each) for each in told] == [Trouble] * is_trouble


@pytest.mark.parametrize(
    ("launcher", "kind", "has_gpus", "chosen"),
    [
        ("fork", "script", True, "fork"),
        ("auto", "script", False, "fork"),
        ("auto", "script", True, "exec"),
        ("auto", "command", False, "exec"),
    ],
)
def test_the_launcher_that_the_job_leaves_open_is_chosen_by_the_node_and_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str, kind: str, has_gpus: bool, chosen: str
) -> None:
    monkeypatch.setattr(module, "gpus", lambda: ["0"] if has_gpus else [])
    task = replace(ranks_of(tmp_path, []).task, launcher=launcher, program=Program(kind, "x"))
    assert resolve_launcher(task) == chosen


@pytest.mark.parametrize(
    ("number", "cause", "words"),
    [(24, "infra", "no file can be opened"), (2, "user_error", "No such file or directory")],
)
def test_a_launcher_that_can_not_be_started_is_the_machines_fault_only_if_a_resource_is_used_up(
    tmp_path: Path, number: int, cause: str, words: str
) -> None:
    async def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    told: list[Report] = []
    ranks = ranks_of(tmp_path, told)
    ranks.launcher.start = fail  # type: ignore[method-assign]
    asyncio.run(ranks.start())
    (trouble,) = told
    assert isinstance(trouble, Trouble)
    assert trouble.cause == cause
    assert words in trouble.reason
