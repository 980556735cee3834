"""The columns of the table of runs: options of a command line, the job's fields, results, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cli.render.runs import note
from orchestrator.outcome.verdict import Outcome, Verdict
from orchestrator.runs.labels import Labels, change_tags, set_note
from orchestrator.runs.record import RunRecord, SweepPoint
from orchestrator.views.facts import config_of, facts_of, options_of, typed
from orchestrator.views.reader import Reader
from tests.unit.views.runs_made import FAILED, begin, end, make


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("train.py --lr 0.1 --amp --epochs=3", {"lr": 0.1, "amp": True, "epochs": 3}),
        ("-b 32 --bias -0.5 --last", {"b": 32, "bias": -0.5, "last": True}),
        ("optimizer.lr=1e-3 +model=vit ++seed=7", {"optimizer.lr": 0.001, "model": "vit", "seed": 7}),
        ("--empty= --path a=b", {"empty": "", "path": "a=b"}),
        ("", {}),
    ],
)
def test_options_of_a_command_line(words: str, options: dict[str, object]) -> None:
    assert options_of(words.split()) == options


def test_words_that_are_numbers_or_truth_values() -> None:
    assert [typed(text) for text in ("3", "0.5", "1e-4", "True", "nan", "adam")] == [3, 0.5, 1e-4, True, "nan", "adam"]


def test_a_run_has_its_settings_and_no_variable_or_secret() -> None:
    job = {"name": "x", "script": "t.py", "args": ["--lr", "1"], "env": {"KEY": "v"}, "secrets": ["PIN"],
           "training": {"lr": 0.1, "steps": 9}, "limits": {"time": 60}}  # fmt: skip
    record = RunRecord(
        "r-1", job_document=job, hosts=("n1", "n2"), nnodes=2, point=SweepPoint("s", 0, {"job.training.steps": "5"})
    )
    assert config_of(record) == {"lr": 1, "steps": 5, "script": "t.py", "limits": {"time": 60}}
    found = dict(facts_of(record, {"acc": 0.5, "nan": float("nan"), "deep": {"a": [1, 2]}}, {"loss": 0.25},
                          {"commit": "0123456789abcdef", "dirty": True}, gpus=16))  # fmt: skip
    assert found == {
        "config.lr": 1, "config.steps": 5, "config.script": "t.py", "config.limits.time": 60, "result.acc": 0.5,
        "result.deep.a": "1 2", "metric.loss": 0.25, "machine.hosts": "n1, n2", "machine.nodes": 2, "machine.gpus": 16,
        "git.commit": "0123456789", "git.dirty": True,
    }  # fmt: skip


def test_a_row_has_facts_labels_and_the_reason_before_the_place(tmp_path: Path) -> None:
    run = make(tmp_path, "r-1", job={"args": ["--lr", "0.1"]})
    begin(run)
    end(run, FAILED)
    reader = Reader(tmp_path, note, has_facts=True)
    (row,) = reader.runs().rows
    assert dict(row.facts)["config.lr"] == 0.1
    assert (row.note, row.place) == ("exit code 1: boom, rank 1 on node 0 (n1)", "rank 1 on node 0 (n1)")
    change_tags(run, ["a"])
    set_note(run, "b")
    assert reader.runs().rows[0].labels == Labels(("a",), "b")  # of a run that has ended, too
    assert reader.runs().rows[0] is reader.runs().rows[0]


@pytest.mark.parametrize(
    ("reason", "parts"),
    [
        ("rank 2 on node 0 (vm) ended with exit code 1", ("exit code 1", "rank 2 on node 0 (vm)")),
        ("rank 2 on node 0 (vm) ended with SIGKILL: x; y\nmore", ("SIGKILL: x; y", "rank 2 on node 0 (vm)")),
        ("node 1 (n2) was lost", ("node 1 (n2) was lost", "")),
        ("", ("", "")),
    ],
)
def test_a_reason_is_parted_from_its_place(reason: str, parts: tuple[str, str]) -> None:
    assert Verdict(Outcome.FAILED, reason=reason).why_and_where == parts
