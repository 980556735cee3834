"""The metrics that were read from a program's own files are metrics like those that it has reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.render.runs import progress
from orchestrator.errors import UsageError
from orchestrator.operations.ranking import rank
from orchestrator.operations.tensorboard import lay_out
from orchestrator.runs.files import written_metrics
from orchestrator.runs.files.file_cache import FileCache
from orchestrator.runs.files.logs import beat_of, beats_of
from orchestrator.runs.files.metrics import Series, default_metric, metrics_of, names_of_series, series
from orchestrator.runs.files.written_metrics import HOW_TO_WRITE, has_metrics, last_values, newest_metrics
from orchestrator.runs.store import RunDir, append_lines, create_run
from orchestrator.web.signatures import signatures_of


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = create_run(tmp_path, "a-222222", {"kind": "local", "job": {"name": "a"}})
    run.node(0).mkdir(parents=True)
    return run


def read(run: RunDir, *lines: dict[str, object]) -> None:
    """Have node 0's agent read these from the program's files."""
    append_lines(run.node(0) / "metrics.jsonl", [json.dumps({"attempt": 0, **line}) for line in lines])


def test_they_are_series_and_a_metric_that_rank_0_has_reported_counts_first(run: RunDir) -> None:
    read(run, {"step": 1, "train/loss": 2.0, "acc": 0.1}, {"step": 2, "train/loss": 1.0})
    looks = Series(run)
    looks.look()
    append_lines(run.path / "metrics.jsonl", ['{"kind": "train", "step": 9, "acc": 0.9}'])
    read(run, {"step": 3, "train/loss": 0.5, "acc": 0.3})
    looks.look()
    assert [(each.step, each.value) for each in looks.values("train/loss")] == [(1, 2.0), (2, 1.0), (3, 0.5)]
    assert [(each.step, each.value) for each in looks.values("acc")] == [(9, 0.9)]
    assert series(run, "train/loss") == [(1, 2.0), (2, 1.0), (3, 0.5)]
    assert names_of_series(run) == {"train/loss", "acc"}
    assert metrics_of(run) == {"step": 9.0, "train/loss": 0.5, "acc": 0.9}


def test_runs_are_ranked_by_them(run: RunDir, tmp_path: Path) -> None:
    other = create_run(tmp_path, "b-222222", {"kind": "local"})
    other.node(0).mkdir(parents=True)
    read(run, {"step": 1, "val_loss": 2.0})
    read(other, {"step": 1, "val_loss": 1.0})
    assert [row.run_id for row in rank("two", [run, other], "val_loss", None).rows] == ["b-222222", "a-222222"]


def test_without_any_metric_a_sentence_says_how_to_write_some(run: RunDir, tmp_path: Path) -> None:
    assert not has_metrics(run)
    for attempt in (lambda: rank("one", [run], "loss", None), lambda: lay_out([run], tmp_path)):
        with pytest.raises(UsageError) as caught:
            attempt()
        assert HOW_TO_WRITE in caught.value.hint
    assert "run.metric(loss=...)" in HOW_TO_WRITE


def test_a_program_without_heartbeats_is_as_far_as_its_newest_metrics(run: RunDir) -> None:
    assert beat_of(run, 0) is None
    read(run, {"step": 1, "acc": 0.1}, {"step": 7, "train/loss": 0.25, "time": 5.0})
    assert beat_of(run, 0) == beats_of(run, 0)[0] == {"step": 7, "metrics": {"acc": 0.1, "train/loss": 0.25}}
    assert progress(beat_of(run, 0)) == "step 7, train/loss 0.25"
    assert beat_of(run, 1) is None
    (run.node(0) / "attempt_0").mkdir()
    (run.node(0) / "attempt_0/beat_0").write_text('{"step": 9, "loss": 0.5}')
    assert progress(beat_of(run, 0)) == "step 9, loss 0.5"


def test_lines_that_no_agent_has_written_do_not_matter(run: RunDir) -> None:
    text = (
        '[1]\n{"step": 1e999, "attempt": 0}\n{"step": 1'
        + "0" * 400
        + ', "attempt": 0}\n\xff\n{"step": 2, "attempt": 0, "x": NaN'
    )
    (run.node(0) / "metrics.jsonl").write_text(text + '}\n{"step": 3, "attempt": 0, "x": 1' + "0" * 400 + "}\n{")
    assert newest_metrics(run, 0) == {"step": 3, "metrics": {}}
    assert progress(newest_metrics(run, 0)) == "step 3"
    (run.node(0) / "metrics.jsonl").unlink()
    (run.node(0) / "metrics.jsonl").symlink_to("/etc/passwd")
    assert (newest_metrics(run, 0), metrics_of(run), names_of_series(run)) == (None, {}, set())


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ((), "loss"), (("loss", "a_loss"), "loss"), (("acc", "train/loss", "val_loss"), "train/loss"),
        (("bleu", "acc"), "acc"), (("train/loss", "rank_1/train/loss"), "train/loss"),
    ],
)  # fmt: skip
def test_the_metric_that_is_shown_unasked(names: tuple[str, ...], first: str) -> None:
    assert default_metric(names) == first


def test_they_are_shown_by_tensorboard_beside_what_its_tracker_was_told(run: RunDir, tmp_path: Path) -> None:
    read(run, {"step": 1, "train/loss": 2.0})
    (tmp_path / "one").mkdir()
    assert lay_out([run], tmp_path / "one") == [run]
    [written] = (tmp_path / "one/a-222222").iterdir()
    assert b"train/loss" in written.read_bytes()
    (run.path / "trackers/tensorboard").mkdir(parents=True)
    (tmp_path / "two").mkdir()
    assert lay_out([run], tmp_path / "two") == []
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == ["a-222222", "a-222222.files"]


def test_the_newest_values_of_an_unchanged_file_are_read_once(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, known = list[Path](), FileCache()
    real = written_metrics.read_part
    monkeypatch.setattr(written_metrics, "read_part", lambda path, *rest: reads.append(path) or real(path, *rest))
    assert last_values(run, known) == {}
    read(run, {"step": 1, "acc": 0.5, "train/loss": 2.0})
    append_lines(run.path / "metrics.jsonl", ['{"kind": "train", "step": 9, "acc": 0.9}'])
    assert [last_values(run, known) for _ in range(2)] == [{"acc": 0.9, "train/loss": 2.0}] * 2
    assert len(reads) == 2
    append_lines(run.path / "metrics.jsonl", ['{"kind": "train", "step": 10, "acc": 0.95}'])
    assert last_values(run, known) == {"acc": 0.95, "train/loss": 2.0}
    assert reads[2:] == [run.path / "metrics.jsonl"]


def test_a_name_alone_is_the_most_frequent_kind_of_line_wherever_newest_values_are_read(run: RunDir) -> None:
    lines = [{"kind": "train", "step": step, "loss": 0.5} for step in range(3)]
    lines += [{"kind": "eval", "step": 2, "loss": 0.75, "accuracy": 0.9}]
    append_lines(run.path / "metrics.jsonl", [json.dumps(line) for line in lines])
    newest = {"loss": 0.5, "eval.loss": 0.75, "accuracy": 0.9}
    assert last_values(run) == newest
    assert metrics_of(run) == {"step": 2.0, **newest}
    read(run, *({"kind": "train", "step": step, "loss": 0.5} for step in range(3)))
    read(run, {"kind": "eval", "step": 2, "loss": 0.75})
    assert newest_metrics(run, 0) == {"step": 2, "metrics": {"loss": 0.5, "eval.loss": 0.75}}
    assert Series(run).names_of_kinds() == set()
    looks = Series(run)
    looks.look()
    assert (looks.names_of_kinds(), looks.values("loss")[-1].value) == ({"eval.loss"}, 0.5)


def test_the_beginning_of_a_long_file_tells_which_kind_is_the_most_frequent(run: RunDir) -> None:
    trained = [{"kind": "train", "step": step, "loss": 0.5, "time": 1e9} for step in range(400)]
    checked = [{"kind": "eval", "step": step, "loss": 0.75, "time": 1e9} for step in range(200)]
    last = {"kind": "train", "step": 400, "loss": 0.25}
    append_lines(run.path / "metrics.jsonl", [json.dumps(line) for line in (*trained, *checked, last)])
    assert last_values(run) == {"loss": 0.25, "eval.loss": 0.75}


def test_a_page_is_told_that_they_have_changed(run: RunDir) -> None:
    before = signatures_of(run)
    read(run, {"step": 1, "train/loss": 2.0})
    changed = {name for name, word in signatures_of(run).items() if before[name] != word}
    assert changed == {"metrics"}
