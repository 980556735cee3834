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
from orchestrator.views.sweep import Effect, Importance, best_so_far, importances, ranks_of, readable
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
    assert found[0] == Importance("lr", 1.0, -1.0, Effect.FALLS, 1e-4)
    assert found[1] == Importance("opt", 0.8, best="sgd")  # the share of the ranks' variation: 4 of 5
    assert found[2] == Importance("seed", 0.0, 0.0, Effect.UNCLEAR, 0)
    assert len(found) == 3  # a setting that does not differ has none


@pytest.mark.parametrize(
    ("values", "effect", "best"),
    [
        ([1.0, 2.0, 4.0, 8.0], Effect.RISES, 4),
        ([1.0, 4.0, 8.0, 7.0], Effect.INSIDE, 3),
        ([8.0, 1.0, 2.0, 7.0], Effect.UNCLEAR, 1),
        ([2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0, 9.0, 8.0], Effect.RISES, 8),  # many values: its thirds rise
        ([1.0, 2.0, 3.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0], Effect.INSIDE, 4),
    ],
)
def test_a_direction_is_told_only_if_the_metric_goes_that_way_all_along(
    values: list[float], effect: Effect, best: int
) -> None:
    [found] = importances([{"lr": str(lr + 1)} for lr in range(len(values))], values)
    assert (found.effect, found.best) == (effect, best)


def test_the_best_value_of_a_setting_is_that_of_the_best_metric() -> None:
    settings = [{"opt": name} for name in ("sgd", "adam", "sgd", "adam")]
    values = [1.0, 2.0, 1.5, 3.0]
    assert [importances(settings, values, better)[0].best for better in (Better.LOWER, Better.HIGHER)] == [
        "sgd",
        "adam",
    ]


def test_settings_that_always_change_together_are_named() -> None:
    grid = [{"lr": lr, "opt": opt, "seed": seed} for lr, opt in (("1", "a"), ("2", "b"), ("3", "a")) for seed in "01"]
    found = importances(grid, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert {each.name: each.tied for each in found} == {"lr": ("opt",), "opt": ("lr",), "seed": ()}
    drawn = [{"lr": str(number), "width": str(number * 7 % 5)} for number in range(5)]
    assert {each.tied for each in importances(drawn, [1.0, 2.0, 3.0, 4.0, 5.0])} == {()}


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
