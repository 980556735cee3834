"""A node's own record: one object a line, numbered, and a full disk ends nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from orchestrator.node.system import event_log
from orchestrator.node.system.event_log import EventLog
from orchestrator.protocol.events import (
    AgentEnded,
    AgentStarted,
    Cancel,
    CantReach,
    GangEnded,
    Go,
    Queued,
    Started,
    Submitted,
)
from orchestrator.runs.store import read_lines


def test_events_are_numbered_and_say_when_and_where(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path / "events.jsonl"), 3)
    log.write(Started(0, (0, 2)))
    log.write(CantReach("a\nb\u2028\ud800"))
    first, second = (json.loads(line) for line in (tmp_path / "events.jsonl").read_text().split("\n")[:-1])
    assert (first["kind"], first["seq"], first["node"], first["ranks"]) == ("started", 0, 3, [0, 2])
    assert (second["seq"], second["why"]) == (1, "a\nb\u2028\ud800")
    assert second["mono"] >= first["mono"]


def test_a_restarted_agent_goes_on_counting(tmp_path: Path) -> None:
    path = str(tmp_path / "events.jsonl")
    EventLog(path, 0).write(Queued())
    EventLog(path, 0).write(Queued())
    assert [event["seq"] for event in read_lines(Path(path))] == [0, 1]


def test_a_line_torn_by_a_crash_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"kind": "a"}\n{"kind": "to')
    EventLog(str(path), 0).write(Queued())
    assert [event["kind"] for event in read_lines(path)] == ["a", "held"]


def test_a_folder_that_is_removed_is_made_again_with_the_events_so_far(tmp_path: Path) -> None:
    folder = tmp_path / "nodes" / "0"
    folder.mkdir(parents=True)
    EventLog(str(folder / "events.jsonl"), 0).write(AgentStarted())
    log = EventLog(str(folder / "events.jsonl"), 0)
    log.write(Go(0, 1))
    before = (folder / "events.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "nodes")
    for event in (GangEnded(0, "failed", "", ""), AgentEnded("failed")):
        log.write(event)
    kept = [(event["kind"], event["seq"]) for event in read_lines(folder / "events.jsonl")]
    assert kept == [("agent_started", 0), ("go", 1), ("gang_ended", 3), ("agent_ended", 4)]
    assert (folder / "events.jsonl").read_bytes().startswith(before)  # so a copy elsewhere continues
    assert folder.stat().st_mode & 0o777 == 0o700


def test_of_a_long_record_the_first_event_and_the_newest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "MOST_KEPT", 1000)
    folder = tmp_path / "node"
    folder.mkdir()
    log = EventLog(str(folder / "events.jsonl"), 0)
    for number in range(100):
        log.write(AgentStarted() if number == 0 else Queued())
    shutil.rmtree(folder)
    log.write(AgentEnded("failed"))
    kept = [event["seq"] for event in read_lines(folder / "events.jsonl")]
    assert (kept[0], kept[-1], len(kept) < 20) == (0, 101, True)  # one was written twice
    assert kept[1:-1] == list(range(kept[1], 100))


def test_a_full_disk_is_reported_once_and_costs_only_what_did_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    log, write = EventLog(str(path), 0), os.write
    log.write(Submitted())
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
        log.write(Queued())
    with monkeypatch.context() as patch:

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "write", full)
        log.write(Queued())
        log.write(Queued())
    log.write(Cancel())
    assert [event["kind"] for event in read_lines(path)] == ["submitted", "cancel"]
    assert capfd.readouterr().err.count("No space left on device") == 1


def test_an_event_that_a_full_disk_has_torn_is_written_again_in_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "events.jsonl"
    log, write, room = EventLog(str(path), 0), os.write, [7]

    def short(descriptor: int, data: bytes) -> int:
        if not os.path.exists(log.reserve):  # it has been freed
            return write(descriptor, data)
        return write(descriptor, data[: room.pop()]) if room else write(descriptor, data)

    monkeypatch.setattr(os, "write", short)
    log.write(GangEnded(0, "failed", "user_error", "rank 1 ended with exit code 1"))
    log.write(AgentEnded("failed"))
    assert [event["kind"] for event in read_lines(path)] == ["disk_full", "gang_ended", "agent_ended"]
    assert log.kept == path.read_bytes()
    assert capfd.readouterr().err == ""


def test_a_record_that_is_a_link_is_not_followed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, elsewhere = tmp_path / "events.jsonl", tmp_path / "bashrc"
    elsewhere.write_text("mine\n")
    path.symlink_to(elsewhere)
    path.with_name("events.jsonl.reserve").symlink_to(elsewhere)
    EventLog(str(path), 0).write(Queued())
    assert elsewhere.read_text() == "mine\n"
    assert "it is a link, which orch does not follow" in capfd.readouterr().err
