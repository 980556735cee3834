"""What a job says of its search, and what is wrong with it, in sentences."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.errors import UsageError
from orchestrator.prepare.sweeps.search import extremes, point_of, search_of
from orchestrator.protocol.metric import Better
from orchestrator.runs.searches import Sampler, Search, Stop
from orchestrator.specs.border import valid
from orchestrator.specs.job import Job, Training
from orchestrator.specs.search_space import Range, choice_text
from orchestrator.specs.spec import names_of

SPACE = {"--lr": {"low": 1e-4, "high": 1e-1, "log": True}, "job.env.DEPTH": {"low": 2, "high": 8}, "--opt": ["a", "1"]}


def job(space: dict[str, Any] | None = None, **fields: Any) -> Job:
    given_ = {"name": "a", "script": "a.py", "metric": "loss", "search": {"space": space or SPACE}, **fields}
    return valid(Job, given_)


def searched(found: Job, *sets: str, trials: int = 10) -> Search:
    return search_of(found, Sampler.TPE, trials, Stop.ASHA, sets, names_of(Training))


def test_a_space_is_read() -> None:
    search = searched(job())
    assert (search.metric, search.better, search.trials) == ("loss", Better.LOWER, 10)
    assert [(each.field, each.words(), each.is_whole) for each in search.space] == [
        ("job.args --lr", "0.0001 to 0.1, log", False), ("job.env.DEPTH", "2 to 8", True),
        ("job.args --opt", 'a, "1"', False),
    ]  # fmt: skip
    assert [point.words() for point in extremes(search)] == [
        "--lr=0.0001 job.env.DEPTH=2 --opt=a", '--lr=0.1 job.env.DEPTH=8 --opt="1"',
    ]  # fmt: skip
    point = point_of(search, 3, ["1e-05", "4", '"1"'])
    assert (point.sets, point.args) == (("job.env.DEPTH=4",), ("--lr=1e-05", "--opt=1"))
    assert searched(job(metric={"name": "accuracy", "better": "lower"})).better is Better.LOWER


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ({"--lr": {"low": 1.0}}, "give low and high, or choices"),
        ({"--lr": {"low": 1.0, "high": 1.0}}, r"low \(1.0\) has to be less than high \(1.0\)"),
        ({"--lr": {"low": 0, "high": 1, "log": True}}, "a logarithmic scale needs a low greater than 0"),
        ({"--lr": {"low": float("-inf"), "high": 1.0}}, "finite"),
        ({"--lr": {"low": -1e308, "high": 1e308}}, "low and high have to be between"),
        ({"--lr": {"low": 0, "high": 10**400}}, "low and high have to be between"),
        ({"--lr": {"low": 1, "high": 2, "choices": [1]}}, "give choices, or low and high, not both"),
        ({"--lr": []}, "at least 1 item"),
        ({"--lr": [1, 1]}, "the choice 1 is given twice"),
        ({}, "at least 1 item"),
    ],
)
def test_a_wrong_space_is_refused(space: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        valid(Job, {"name": "a", "script": "a.py", "search": {"space": space}})


@pytest.mark.parametrize(
    ("found", "sets", "trials", "says"),
    [
        (job(search=None), (), 3, "has no `search` section"),
        (job(metric=None), (), 3, "names no metric"),
        (job(), (), 10**6, "a search may have"),
        (job({"lr": [1, 2]}), (), 3, "search.space.lr: 'lr' is short for a field of `training`"),
        (job({"job.name": ["a", "b"]}), (), 3, "search.space.job.name: job.name can't differ in a sweep"),
        (job({"job.env.A": [1, 2]}), ("job.env.A=3",), 3, "search.space.job.env.A: --set job.env.A=3 sets the same"),
        (job({"lr": [1, 2]}, script=None, training={"task": "a.py"}), ("lr=3",), 3, "search.space.lr: --set lr=3 sets"),
        (job({"job.env": [1, 2], "job.env.A": [1]}), (), 3, "sets the same field, job.env"),
    ],
)
def test_what_cannot_be_searched_is_said(found: Job, sets: tuple[str, ...], trials: int, says: str) -> None:
    with pytest.raises(UsageError) as error:
        searched(found, *sets, trials=trials)
    assert says in str(error.value)
    assert "--sweep" not in f"{error.value} {error.value.hint}"


printable = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=6)


@given(st.one_of(printable, st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_choice_is_what_it_was_when_it_is_set(value: Any) -> None:
    from ruamel.yaml import YAML

    found = YAML(typ="safe").load(choice_text(value))
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("value", ["a", "a b", "1", "true", 'a"b', "c\\d", "e'f", "'", '"', "é 😀"])
def test_a_choice_for_an_argument_is_what_the_program_is_given(value: str) -> None:
    (point, *_) = extremes(searched(job({"--x": [value, "other"]})))
    assert point.args == (f"--x={value}",)


def test_a_recorded_space_is_the_same_space() -> None:
    dumped = job().to_json()
    assert searched(valid(Job, dumped)) == searched(job())
    assert valid(Range, {"low": 1, "high": 2.0}).high == 2.0
