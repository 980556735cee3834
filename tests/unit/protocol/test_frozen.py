"""Frozen dataclasses whose methods are written once."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator.protocol.frozen import Frozen, Value, default_of, setting


class Box(Frozen):
    """A box."""

    width: int
    labels: dict[str, str] = setting("what is on it", default_factory=dict)
    height: int = setting("in cm", default=3, ge=1)


class Crate(Box):
    """A box with another type of height, and a field more."""

    height: float
    lid: bool = True


def test_it_is_a_dataclass_whose_values_are_its_fields() -> None:
    assert Box(width=1) == Box(1) == Box(width=1, labels={}, height=3) != Box(width=2)
    assert Box(width=1) != Crate(width=1)
    assert dataclasses.asdict(Box(width=1)) == {"width": 1, "labels": {}, "height": 3}
    assert dataclasses.replace(Box(width=1, height=5), width=2) == Box(width=2, height=5)
    assert repr(Box(width=1)) == "Box(width=1, labels={}, height=3)"
    assert Box(width=1).labels is not Box(width=1).labels


def test_equal_values_have_one_hash() -> None:
    assert len({Box(1, ("a",)), Box(1, ("a",)), Box(2, ("a",))}) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "values", "wrong"),
    [((), {}, "width"), ((1,), {"depth": 2}, "depth"), ((1, {}, 3, "x"), {}, "'x'"), ((), {"deep": 1}, "width, deep")],
)
def test_a_field_that_is_missing_unknown_or_too_many_is_named(first: tuple, values: dict, wrong: str) -> None:
    with pytest.raises(TypeError, match=f"^Box: fields are missing, unknown or too many: {wrong}$"):
        Box(*first, **values)


def test_nothing_can_be_set() -> None:
    with pytest.raises(AttributeError, match=r"Box.width can't be set: it is frozen"):
        Box(width=1).width = 2  # type: ignore[misc]


def test_a_field_whose_type_alone_is_stated_again_keeps_its_default_and_meaning() -> None:
    fields = {each.name: each for each in dataclasses.fields(Crate)}
    assert [*fields] == ["width", "labels", "height", "lid"]
    assert (fields["height"].type, default_of(fields["height"])) == ("float", 3)
    assert dict(fields["height"].metadata) == {"description": "in cm", "ge": 1}
    assert default_of(fields["width"]) is dataclasses.MISSING


class Tag(Value):
    """A tag."""

    name: str
    note: str = dataclasses.field(default="", compare=False)


def test_a_value_is_built_by_position_and_compared_by_its_compared_fields() -> None:
    assert Tag("a", "x") == Tag("a") != Tag("b")
    assert hash(Tag("a", "x")) == hash(Tag("a"))
    assert dataclasses.replace(Tag("a", "x"), name="b").note == "x"
