"""What others have written is a value, or an error of one kind."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol.json_text import parse_json


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, b"\xff", "1" * 5000, "", "{"])
def test_what_is_no_json_is_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text)


@given(st.binary(max_size=50))
def test_nothing_else_is_raised(text: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_json(text)
