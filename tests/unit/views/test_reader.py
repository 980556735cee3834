"""A reader looks at runs again and again: it sees what changes, and reads no run twice that has ended."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from orchestrator.backends.base import Sight
from orchestrator.cli.render.runs import note
from orchestrator.errors import RunNotFoundError
from orchestrator.outcome.verdict import Outcome, Verdict
from orchestrator.protocol.samples import RankSample, Sample
from orchestrator.runs.files.samples import read_samples
from orchestrator.runs.findings import FindingKind, findings
from orchestrator.runs.state import RunStatus
from orchestrator.runs.store import remove_run
from orchestrator.views.json_types import to_json
from orchestrator.views.reader import Reader
from orchestrator.views.run import RankStatus
from tests.unit.views.runs_made import FAILED, beat, begin, end, make, tell


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of this machine's runs count as alive: their processes are not what is looked at here."""
    monkeypatch.setattr("orchestrator.backends.agents.backend.Agents.look", lambda *_, **__: Sight({0: True, 1: True}))


def test_the_newest_runs_come_first_and_filters_choose_among_them(tmp_path: Path) -> None:
    for number, outcome in enumerate((Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELLED)):
        end(make(tmp_path, f"train{number}-abcdef"), Verdict(outcome, reason="loss is nan" if number == 1 else ""))
    make(tmp_path, "probe-abcdef", profile_name="big")
    reader = Reader(tmp_path, note)
    seen = reader.runs(seconds=60.0)
    assert [row.run_id.partition("-")[0] for row in seen.rows] == ["probe", "train2", "train1", "train0"]
    assert dict(seen.states) == {"succeeded": 1, "failed": 1, "cancelled": 1, "pending": 1}
    for words, names in [("FAILED nan", ["train1"]), ("big", ["probe"]), ("train0", ["train0"]), ("nothing", [])]:
        assert [row.name for row in reader.runs(words).rows] == names
    assert reader.runs("big").total == 4


def test_many_new_runs_are_read_by_several_looks_and_ended_ones_once(tmp_path: Path) -> None:
    runs = [make(tmp_path, f"train-abcde{letter}") for letter in "fghjk"]
    for run in runs:
        end(run, Verdict(Outcome.SUCCEEDED))
    reader = Reader(tmp_path, note)
    unread = [reader.runs(seconds=0.0).unread for _ in runs]
    assert unread == [4, 3, 2, 1, 0]
    (runs[0].path / "run.json").write_text("{")  # nobody reads it any more
    assert [row.state for row in reader.runs().rows] == [RunStatus.SUCCEEDED] * 5
    remove_run(tmp_path, runs[1])
    assert reader.runs().total == 4


def test_a_damaged_run_is_a_row_like_others(tmp_path: Path) -> None:
    (make(tmp_path, "train-abcdef").path / "run.json").write_text("{")
    row = Reader(tmp_path, note).runs().rows[0]
    assert row.state is RunStatus.UNREADABLE


@pytest.mark.usefixtures("alive")
def test_a_run_that_goes_on_is_seen_to_change(tmp_path: Path) -> None:
    run = make(tmp_path, "train-abcdef", nodes=2)
    clock = iter(float(second) for second in range(200, 300))
    reader = Reader(tmp_path, note, lambda: next(clock))
    assert [rank.state for rank in reader.run(run).ranks] == []
    begin(run, nodes=2)
    for rank in range(4):
        beat(run, rank, node=rank // 2, step=10, total=100, time=50.0, phase="train", loss=0.5)
    seen = reader.run(run)
    assert (seen.row.state, [node.host for node in seen.nodes]) == (RunStatus.RUNNING, ["n1", "n2"])
    assert [(rank.rank, rank.host, rank.state, rank.step) for rank in seen.ranks] == [
        (rank, f"n{rank // 2 + 1}", RankStatus.RUNNING, 10) for rank in range(4)
    ]
    beat(run, 2, node=1, step=12, total=100, time=51.0, phase="save")
    seen = reader.run(run)
    assert [rank.step_time for rank in seen.ranks] == [None, None, 0.5, None]
    assert seen.ranks[2].phase == "save"
    samples = [
        Sample(50.0, 2.0, ranks=(RankSample(2, step=10),)),
        Sample(52.0, 2.0, ranks=(RankSample(2, step_seconds=0.5),)),
    ]
    (run.node(1) / "samples.jsonl").write_text("".join(f"{json.dumps(each.to_json())}\n" for each in samples))
    assert [(row.first, row.values) for row in reader.step_time_map(run, columns=1).rows] == [(2, (0.5,))]
    tell(run, 1, "rank_exit", 140.0, rank=3, code=1, attempt=0)
    assert [rank.state for rank in reader.run(run).ranks][2:] == [RankStatus.RUNNING, RankStatus.FAILED]
    assert reader.runs().rows[0].state is RunStatus.RUNNING
    assert [event.kind for event in reader.events(run)].count("started") == 2


@pytest.mark.usefixtures("alive")
def test_the_time_of_a_run_is_its_phases_and_its_attempts(tmp_path: Path) -> None:
    run = make(tmp_path, "train-abcdef")
    begin(run, at=110.0)
    tell(run, 0, "attempt_failed", 120.0, attempt=0, cause="user_error", culprit={"rank": 1, "code": 1, "node": 0})
    tell(run, 0, "restart", 121.0, attempt=1, cause="user_error")
    begin(run, attempt=1, at=125.0)
    reader = Reader(tmp_path, note, lambda: 130.0)
    assert [(span.name, span.start, span.end) for span in reader.run(run).timeline.spans if span.kind == "phase"] == [
        ("submitting", 100.0, 101.0), ("queued", 101.0, 105.0), ("joining", 105.0, 108.0), ("starting", 108.0, 110.0),
        ("running", 110.0, 120.0), ("restarting", 120.0, 125.0), ("running", 125.0, None),
    ]  # fmt: skip
    tell(run, 0, "gang_ended", 150.0, attempt=1, outcome="failed", cause="user_error", reason="")
    tell(run, 0, "rank_exit", 149.0, rank=1, code=1, attempt=1)
    tell(run, 0, "rank_exit", 150.0, rank=0, signal="SIGTERM", attempt=1)
    end(run, FAILED)
    seen = Reader(tmp_path, note).run(run)
    assert [(span.name, span.start, span.end) for span in seen.timeline.spans[6:]] == [
        ("running", 125.0, 150.0), ("ending", 150.0, 160.0), ("attempt 0", 110.0, 120.0), ("attempt 1", 125.0, 150.0),
    ]  # fmt: skip
    assert (seen.timeline.start, seen.timeline.end) == (100.0, 160.0)
    assert seen.timeline.spans[8].note.startswith("rank 1")
    assert [span.failed for span in seen.timeline.spans[6:]] == [False, False, True, True]
    assert [rank.state for rank in seen.ranks] == [RankStatus.STOPPED, RankStatus.FAILED]
    assert (seen.verdict, seen.row.note) == (FAILED, "exit code 1: boom, rank 1 on node 0 (n1)")


def test_every_view_is_json(tmp_path: Path) -> None:
    run = make(tmp_path, "train-abcdef", job={"metric": "loss"})
    begin(run)
    beat(run, 0, step=1, loss=float("nan"))
    (run.path / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 2.0, "time": 5}\n')
    (run.node(0) / "attempt_0" / "rank_0.log").write_text("a line\n")
    end(run, FAILED)
    reader = Reader(tmp_path, note, time.time)
    views = [reader.runs(), reader.run(run), reader.curves([run], "loss"), reader.log(run).last(5),
             reader.step_time_map(run, columns=3), reader.compare(run, run), reader.events(run),
             reader.log(run).find("line", 0)]  # fmt: skip
    for view in views:
        assert json.loads(json.dumps(to_json(view), allow_nan=False)) == to_json(view)
    assert to_json(views[2])["curves"][0]["values"] == [2.0]
    assert to_json(views[3])["lines"][0]["text"] == "a line"
    assert to_json(views[1])["row"]["state"] == "failed"


def test_the_log_is_that_of_the_newest_attempt_that_has_one(tmp_path: Path) -> None:
    run = make(tmp_path, "train-abcdef")
    for attempt in (0, 2, 10):
        folder = run.node(0) / f"attempt_{attempt}"
        folder.mkdir(parents=True)
        (folder / "rank_1.log").write_text(f"of {attempt}\n")
    reader = Reader(tmp_path, note)
    assert [line.text for line in reader.log(run, 1).last(3).lines] == ["of 10"]
    assert [line.text for line in reader.log(run, 1, attempt=2).last(3).lines] == ["of 2"]
    assert reader.log(run, 0).size == 0
    with pytest.raises(RunNotFoundError):
        reader.find("nothing")


def test_the_first_look_has_the_time_of_a_step_and_only_the_pace_says_who_waits(tmp_path: Path, alive: None) -> None:
    begin(run := make(tmp_path, "train-abcdef"))
    lines = [
        Sample(time=100.0 + 2 * at, seconds=2.0, cores=2, memory_total=100.0,
               ranks=tuple(RankSample(rank, step=9 * at, waited=0.7 * rank, step_seconds=0.1 * (1 + rank))
                           for rank in range(2)))
        for at in range(90)
    ]  # fmt: skip
    (run.node(0) / "samples.jsonl").write_text("".join(f"{json.dumps(line.to_json())}\n" for line in lines))
    reader = Reader(tmp_path, note)
    assert {rank.rank: rank.step_time for rank in reader.run(run).ranks} == {0: 0.1, 1: 0.2}
    assert reader.run(run, all_ranks=False).ranks == ()  # none has failed
    assert FindingKind.DATA in {each.kind for each in findings(read_samples(run))}
    pace = reader.pace(run)
    assert pace is not None
    assert pace.why.startswith("waits for its loader 70 %")
    assert reader.findings(run) == []


def test_an_ended_run_has_the_last_value_that_it_has_written(tmp_path: Path) -> None:
    run = make(tmp_path, "a-abcdef")
    begin(run)
    (run.path / "metrics.jsonl").write_text('{"kind": "train", "step": 9, "loss": 0.5}\n')
    beat(run, 0, step=8, loss=0.75)
    end(run, Verdict(Outcome.SUCCEEDED))
    assert dict(Reader(tmp_path, note, has_facts=True).run(run).row.facts)["metric.loss"] == 0.5


def test_an_agent_without_a_last_event_makes_no_rank_of_a_run_that_succeeded_a_problem(tmp_path: Path) -> None:
    run, clock = make(tmp_path, "a-abcdef"), [200.0]
    begin(run)
    end(run, Verdict(Outcome.SUCCEEDED), at=160.0)
    reader = Reader(tmp_path, note, lambda: clock[0])
    assert [rank.state for rank in reader.run(run).ranks] == [RankStatus.DONE] * 2
    assert reader.run(run, all_ranks=False).ranks == ()
    hours = reader.hours(run)
    clock[0] = 4000.0
    assert reader.hours(run) == hours  # they end with the run
    assert hours["rank_hours"] == pytest.approx(100 / 3600, abs=1e-6)
