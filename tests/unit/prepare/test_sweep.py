"""What --sweep takes, and the points that it makes."""

from __future__ import annotations

import contextlib
import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import UsageError
from orchestrator.prepare.sweeps.sweep import Axis, points_of, read_axes, read_values
from orchestrator.runs.run_id import new_run_id, point_id, sweep_of

FIELDS = ("lr", "seed", "strategy")


def axes(*options: str, sets: tuple[str, ...] = (), trains: bool = True) -> list[Axis]:
    return read_axes(options, FIELDS, sets, trains=trains)


def refused(*options: str, sets: tuple[str, ...] = (), trains: bool = True) -> str:
    with pytest.raises(UsageError) as caught:
        points_of(axes(*options, sets=sets, trains=trains))
    return str(caught.value)


def test_every_combination_is_a_point_the_last_key_fastest() -> None:
    points = points_of(axes("lr=1e-2,1e-3", "seed=0..2"))
    assert [point.words() for point in points] == [
        "lr=1e-2 seed=0", "lr=1e-2 seed=1", "lr=1e-2 seed=2", "lr=1e-3 seed=0", "lr=1e-3 seed=1", "lr=1e-3 seed=2",
    ]  # fmt: skip
    assert points[4].sets == ("job.training.lr=1e-3", "job.training.seed=1")
    assert [point.index for point in points] == list(range(6))


def test_a_word_is_a_field_of_training_or_an_option_of_the_task() -> None:
    assert [axis.field for axis in axes("lr=1", "width=2", "job.env.DEPTH=3")] == [
        "job.training.lr", "job.training.options.width", "job.env.DEPTH",
    ]  # fmt: skip


def test_values_are_kept_as_they_were_written() -> None:
    assert read_values("1e-3, 0x10,'a,b',[1,2],{a: 1, b: 2},3..1", "") == (
        "1e-3", "0x10", "'a,b'", "[1,2]", "{a: 1, b: 2}", "3", "2", "1",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["lr"], "can't be read"),
        (["lr="], "a value is empty"),
        (["lr=1,,2"], "a value is empty"),
        (["lr=1,1"], "the value 1 is given twice"),
        (["lr=1", "job.training.lr=2"], "--sweep lr=1 sets the same field, job.training.lr"),
        (["job.env.A=1", "job.env={A: 2}"], "sets the same field, job.env"),
        (["sed=0..4"], "'sed' is not a field of `training`"),
        (["profile.nodes=1,2"], "varies fields of the job"),
        (["training.lr=1"], "did you mean --sweep job.training.lr=...?"),
        (["args.lr=1"], "did you mean --sweep --lr=...?"),
        (["nodes.3=1"], "write job.FIELD"),
        (["--lr=1"], "did you mean --sweep lr=...?"),
        (["--=1"], "'--' is not an option of a program"),
        (["--a b=1"], "'--a b' is not an option of a program"),
        (["job.name=a,b"], "all points have one name"),
        (["job.code.dir=a,b"], "all points run the same code"),
        (["job="], "names no field"),
        (["seed=0..5000"], "more than 5000 values"),
        (["seed=0..499", "lr=1..11"], "has 5500 points"),
        (["lr=[1,2"], "] is missing"),
        (["lr='1,2"], "' is missing"),
    ],
)
def test_what_cannot_be_swept_is_said(options: list[str], says: str) -> None:
    assert says in refused(*options)


def test_a_set_of_the_same_field_is_refused() -> None:
    assert "--set job.training={lr: 1} sets the same field" in refused("lr=1,2", sets=("job.training={lr: 1}",))
    assert axes("lr=1,2", sets=("job.training.lrs=3",))


def test_a_word_needs_a_training_section() -> None:
    assert "this job doesn't have" in refused("lr=1,2", trains=False)
    assert axes("job.env.LR=1,2", trains=False)[0].field == "job.env.LR"


def test_an_option_of_the_program_is_appended_to_its_arguments() -> None:
    points = points_of(axes("--lr=0.1,'a b'", "-x=1..2", "job.env.LR=3", trains=False))
    assert [point.args for point in points] == [
        ("--lr=0.1", "-x", "1"), ("--lr=0.1", "-x", "2"), ("--lr=a b", "-x", "1"), ("--lr=a b", "-x", "2"),
    ]  # fmt: skip
    assert {point.sets for point in points} == {("job.env.LR=3",)}
    assert points[0].words() == "--lr=0.1 -x=1 job.env.LR=3"
    assert "--sweep --lr=1 sets the same field" in refused("--lr=1", "--lr=2", trains=False)
    assert "did you mean --sweep --lr=..." in refused("lr=1", trains=False)


def test_a_point_is_known_by_its_id() -> None:
    sweep = new_run_id("a.1")
    assert (sweep_of(point_id(sweep, 12)), sweep_of(sweep), sweep_of("a.1")) == (sweep, None, None)


WORDS = st.text("abcfgh_", min_size=1, max_size=5)  # none is nearly a field's
VALUES = st.text(st.characters(codec="ascii", exclude_characters=",'\"[]{}\n"), min_size=1).filter(
    lambda text: text == text.strip() and ".." not in text and text.isprintable()
)


@given(st.dictionaries(WORDS, st.lists(VALUES, min_size=1, max_size=4, unique=True), min_size=1, max_size=4))
def test_the_points_are_the_product(asked: dict[str, list[str]]) -> None:
    points = points_of(axes(*(f"{word}={','.join(values)}" for word, values in asked.items())))
    assert len(points) == math.prod(len(values) for values in asked.values())
    assert [tuple(value for _, value in point.values) for point in points] == list(product(*asked.values()))
    assert len({(point.sets, point.args) for point in points}) == len(points)


@given(st.text())
def test_no_text_gives_a_traceback(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert points_of(axes(text))
