"""What others have written is a value, or an error of one kind."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol.json_text import objects_in, parse_json


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, b"\xff", "1" * 5000, "", "{"])
def test_what_is_no_json_is_one_kind_of_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text)


@given(st.binary(max_size=50))
def test_nothing_else_is_raised(text: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_json(text)


@pytest.mark.parametrize("text", ["[" * 101 + "]" * 101, '{"a":' * 101 + "1" + "}" * 101])
def test_values_are_nested_no_deeper_than_code_that_walks_them_bears(text: str) -> None:
    with pytest.raises(ValueError, match="too deeply"):
        parse_json(text)
    assert parse_json(text[1:-1] if text[0] == "[" else text[5:-1]) is not None


def test_many_values_beside_each_other_are_no_depth() -> None:
    assert parse_json("[" + ",".join(["[{}]"] * 1000) + "]") == [[{}]] * 1000
    assert parse_json('"' + "[" * 1000 + '"') == "[" * 1000


def test_of_lines_only_whole_objects_count() -> None:
    deep = b"[" * 10_000
    lines = [b'{"a": 1}', b"", b"  ", b"[1]", b'{"a": 2', b"\xff", deep, b"null", b'{"a": 3}']
    assert list(objects_in(lines)) == [{"a": 1}, {"a": 3}]
