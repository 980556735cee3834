"""What trackers are told: lines of metrics while they grow, parameters, and how a run ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.outcome.verdict import Cause, Outcome, Verdict
from orchestrator.runs.record import RunRecord, SweepPoint
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.state import Ending
from orchestrator.trackers import history
from orchestrator.trackers.history import MetricLine, ending_in_words, metric_line, new_lines, parameters_of

LINE = {"kind": "train", "step": 3, "loss": 0.5, "attempt": 1, "time": 12.5}


def test_a_line_of_metrics() -> None:
    assert metric_line(json.dumps(LINE).encode(), Redaction()) == MetricLine({"train/loss": 0.5}, 3, 1, 12.5)


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b"[1]", b'{"loss": 1}', b'{"step": 1}', b'{"step": 1, "loss": null}', b'{"step": true, "loss": 1}',
     b'{"step": 1e300, "loss": 1}', b'{"step": 1, "loss": NaN}', b'{"step": 1' + b"0" * 400 + b', "loss": 1}',
     b"[" * 100_000, b'{"step": 1, "loss": 1' + b"0" * 400 + b"}"],
)  # fmt: skip
def test_what_is_no_line_of_metrics(line: bytes) -> None:
    assert metric_line(line, Redaction()) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_read(data: bytes) -> None:
    metric_line(data, Redaction())


def test_a_growing_file_is_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, text = tmp_path / "metrics.jsonl", json.dumps(LINE).encode()
    assert new_lines(path, 0, Redaction(), has_ended=True) == ([], 0)
    path.write_bytes(text + b"\n" + text)
    lines, end = new_lines(path, 0, Redaction(), has_ended=False)
    assert (len(lines), end) == (1, len(text) + 1)
    assert new_lines(path, end, Redaction(), has_ended=False) == ([], end)
    assert len(new_lines(path, end, Redaction(), has_ended=True)[0]) == 1
    monkeypatch.setattr(history, "MOST_BYTES", 20)  # what is longer than a portion is passed over
    assert new_lines(path, 0, Redaction(), has_ended=False) == ([], 20)


def test_parameters_hide_what_is_secret() -> None:
    job = {
        "training": {"lr": 0.1, "options": {"api_key": "canary"}, "data": None},
        "args": ["--token=canary", "--lr=3", "--offset", "-1", "--fast", "--password", "canary", "x" * 600],
    }
    record = RunRecord("a-1", "a", "lab", nnodes=2, job_document=job, point=SweepPoint("s", 0, {"seed": "7"}))
    found = parameters_of(record, Redaction())
    assert "canary" not in str(found)
    assert found["training.lr"] == "0.1"
    assert (found["args.lr"], found["args.offset"], found["args.fast"]) == ("3", "-1", "true")
    assert (found["nodes"], found["profile"], found["sweep.seed"]) == ("2", "lab", "7")
    assert max(map(len, found.values())) == history.MOST_TEXT


def test_an_ending_in_words() -> None:
    verdict = Verdict(Outcome.FAILED, Cause.USER_ERROR, "API_TOKEN=canary", rank=0, host="n1")
    assert ending_in_words(Ending(verdict, 1.0), Redaction()) == {
        "outcome": "failed", "cause": "user_error", "reason": "API_TOKEN=***", "host": "n1", "rank": "0",
    }  # fmt: skip
