"""What a sweep has shown: ranks, importances, the best so far, readable names, and the metric that is chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.render.runs import note
from orchestrator.errors import UsageError
from orchestrator.protocol.metric import Better, JobMetric
from orchestrator.runs.files.metrics import metric_that_exists
from orchestrator.views.reader import Reader
from orchestrator.views.sweep import Importance, best_so_far, importances, ranks_of, readable
from tests.unit.views.runs_made import make


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert ranks_of([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]
    assert ranks_of([]) == []


def test_importances_are_rank_correlations() -> None:
    settings = [
        {"job.training.lr": lr, "seed": seed, "opt": opt, "same": "1"}
        for lr, seed, opt in (("1e-4", "0", "sgd"), ("1e-3", "1", "sgd"), ("1e-2", "1", "adam"), ("1e-1", "0", "adam"))
    ]
    found = importances(settings, [4.0, 3.0, 2.0, 1.0])
    assert found[0] == Importance("lr", 1.0, -1.0)
    assert found[1] == Importance("opt", 0.8)  # the share of the ranks' variation: 4 of 5
    assert found[2] == Importance("seed", 0.0, 0.0)
    assert len(found) == 3  # a setting that does not differ has none


@pytest.mark.parametrize("values", [[1.0, 2.0, None], [1.0, 1.0, 1.0]])
def test_there_is_no_importance_of_too_few_or_equal_values(values: list[float | None]) -> None:
    assert importances([{"lr": "1"}, {"lr": "2"}, {"lr": "3"}], values) == ()


def test_the_best_so_far() -> None:
    assert best_so_far([None, 3.0, 4.0, 1.0, None], Better.LOWER) == [None, 3.0, 3.0, 1.0, 1.0]
    assert best_so_far([3.0, 4.0, 1.0], Better.HIGHER) == [3.0, 4.0, 4.0]


def test_names_that_people_read() -> None:
    assert readable({"job.training.lr": "1e-2", "args.--seed": "0"}) == "lr=1e-2 seed=0"


@pytest.mark.parametrize(
    ("names", "of_job", "chosen"),
    [
        ("accuracy loss", "loss", "loss"),
        ("accuracy loss", "val_loss", "accuracy"),
        ("train_loss val_loss time", "", "val_loss"),
        ("epoch step time", "", None),
        ("speed thing", "", "speed"),
    ],
)
def test_the_metric_is_one_that_exists(names: str, of_job: str, chosen: str | None) -> None:
    found = [dict.fromkeys(names.split(), 1.0), {}]
    assert metric_that_exists(found, JobMetric(of_job) if of_job else None) == chosen


def test_a_sweep_whose_metric_nobody_wrote_is_ranked_by_another(tmp_path: Path) -> None:
    for index in range(3):
        point = {"id": "grid-abcdef", "index": index, "values": {"job.training.lr": f"{index}"}}
        run = make(tmp_path, f"grid-abcdef.{index}", sweep=point, job={"metric": {"name": "f1"}})
        if index:
            run.write("result.json", {"accuracy": index / 10})
    view = Reader(tmp_path, note).sweep("grid-abcdef")
    assert (view.metric, view.better, view.names) == ("accuracy", Better.HIGHER, ("accuracy",))
    assert [(row.label, row.rank, row.best) for row in view.rows] == [
        ("lr=2", 1, 0.2),
        ("lr=1", 2, 0.1),
        ("lr=0", None, None),
    ]
    assert "'f1'" in view.note
    assert json.dumps(view.rows[0].settings) == '{"lr": 2}'
    with pytest.raises(UsageError, match="no sweep 'x'"):
        Reader(tmp_path, note).sweep("x")
