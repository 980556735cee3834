"""What can be a run's id, and what some other machine only says to be one."""

from __future__ import annotations

import secrets

import pytest

from orchestrator.errors import BackendError
from orchestrator.runs.run_id import is_run_id, name_of, new_run_id, point_id, run_id_from


@pytest.mark.parametrize("name", ["a", "mnist_ddp", "a.b-c", "A" * 40])
def test_every_id_that_orch_makes_is_one(name: str) -> None:
    made = new_run_id(name)
    for text in (made, point_id(made, 12), f"{made}.replay-{secrets.token_hex(3)}"):
        assert run_id_from(text, "it") == text
    assert name_of(made) == name_of(point_id(made, 12)) == name


@pytest.mark.parametrize("text", ["a", "train-data", "train-000000", "train-2222222"])
def test_an_id_without_six_characters_of_orchs_has_no_name(text: str) -> None:
    assert name_of(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "../a-222222",
        "/tmp/a-222222",
        "a-222222/..",
        "a-222222\n",
        "-a-222222",
        "a b",
        "a" * 101,
        None,
        7,
        ["a-222222"],
    ],
)
def test_what_would_lead_elsewhere_is_none(text: object) -> None:
    assert not is_run_id(text)
    with pytest.raises(BackendError, match=r"box sent .*, which is not the id of a run"):
        run_id_from(text, "box")
