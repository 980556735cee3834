"""Tables and text that fit a width, whatever stands in them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.render.tables import columns, cut, fold, table, tables

TEXT = st.text(st.sampled_from("ab  -日é\u0301"), max_size=60)
WIDTH = st.integers(2, 40)  # a wide character takes two


@given(TEXT, WIDTH, st.none() | st.integers(1, 4))
def test_folded_text_fits_and_loses_no_letter(text: str, width: int, most: int | None) -> None:
    lines = fold(text, width, most)
    assert max(map(columns, lines)) <= width
    assert len(lines) <= (most or len(lines))
    if most is None:
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@given(TEXT, WIDTH)
def test_what_is_cut_fits_and_what_fits_is_not_cut(text: str, width: int) -> None:
    assert columns(cut(text, width)) <= width
    assert columns(text) > width or cut(text, width) == text


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=4), st.integers(10, 60))
def test_a_table_is_as_wide_as_it_may_be(rows: list[tuple[str, str, str]], width: int) -> None:
    plain = table(["RUN", "STATE", "NOTE"], rows)
    assert len(plain.split("\n")) == 1 + len(rows)
    short = [(name[:4], state, note) for name, state, note in rows]
    narrow = table(["RUN", "STATE", "NOTE"], short, width=width + 8, spare=["STATE"], most=2)
    assert max(map(columns, narrow.split("\n"))) <= width + 8


@given(st.lists(st.lists(TEXT, min_size=7, max_size=7), max_size=4), st.integers(200, 400) | st.none())
def test_columns_that_have_no_room_stand_in_another_table_below(rows: list[list[str]], width: int | None) -> None:
    header = ["NODE", "HOST", "ONE", "TWO", "THREE", "FOUR", "FIVE"]
    parts = tables(header, rows, width, repeat=2).split("\n\n")
    assert [word for part in parts for word in part.split("\n")[0].split() if word not in header[:2]] == header[2:]
    for part in parts:
        assert part.split("\n")[0].split()[:2] == header[:2]
        assert len(part.split("\n")) == 1 + len(rows)
        assert max(map(columns, part.split("\n"))) <= (width or 10_000)
    assert width is not None or parts == [table(header, rows)]
