"""Curves in the terminal: every value is drawn where it belongs, in braille and in ASCII, and none beside the frame."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.render.plot import Curve, plot_page
from orchestrator.runs.files.metrics import names_of_series, series
from orchestrator.runs.store import RunDir

FALLS = Curve("a-1", tuple((float(step), 4.0 - step) for step in range(5)))
RISES = Curve("b-22", ((2.0, 2.0), (4.0, 4.0)))


def test_two_curves_in_ascii() -> None:
    page = plot_page("loss", [FALLS, RISES], (30, 12), braille=False).splitlines()
    assert page[0] == "loss"
    rows = [line[3:] for line in page[1:7]]
    assert [rows[0][0], rows[0][-1]] == ["*", "+"]  # 4 at the first step, and at the last
    assert [line[:3] for line in (page[1], page[4], page[6])] == ["4 |", "2 |", "0 |"]
    assert "step" in page[8]
    assert (page[8].split()[0], page[8].split()[-1]) == ("0", "4")
    assert page[9:] == [
        "* a-1   last 0  lowest 0  highest 4", "+ b-22  last 4  lowest 2  highest 4",
    ]  # fmt: skip
    assert max(map(len, page[:9])) <= 30


def test_one_curve_in_braille_goes_from_corner_to_corner() -> None:
    page = plot_page("loss", [FALLS], (24, 10), braille=True).splitlines()
    first, last = page[1][3], page[5][-1]
    assert (page[1][:3], page[5][:3], len(page[5])) == ("4 │", "0 │", 23)
    assert (ord(first) & 0x01, ord(last) & 0x80) == (0x01, 0x80)  # the dots in the corners
    assert all(0x2800 <= ord(char) < 0x2900 or char == " " for line in page[1:6] for char in line[3:])


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e9, 1e9)), min_size=1, max_size=30),
    st.integers(1, 200), st.integers(1, 60), st.booleans(),
)  # fmt: skip
def test_any_values_stay_in_the_frame(
    points: list[tuple[float, float]], width: int, height: int, braille: bool
) -> None:
    curve = Curve("r", tuple(sorted(points)))
    page = plot_page("m", [curve], (width, height), braille=braille).splitlines()
    assert len(page) == max(5, height - 5) + 4
    assert all(len(line) <= max(width, 40) for line in page[:-1])
    assert any(line.rstrip()[-1] not in "│|" for line in page[1:-3])  # something is drawn


def written(folder: Path, *lines: dict[str, object]) -> RunDir:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RunDir(folder)


def test_a_series_is_of_one_kind_and_of_the_last_that_did_a_step(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        *({"kind": "train", "step": step, "loss": 1.0 / step, "attempt": 0} for step in (1, 2, 3)),
        {"kind": "eval", "step": 3, "loss": 9.0, "accuracy": 0.5},
        {"kind": "train", "step": 2, "loss": 7.0, "attempt": 1},
        {"kind": "train", "step": 4, "loss": float("nan")},
        {"kind": "train", "loss": 5.0},
    ]
    run = written(tmp_path, *lines)
    assert series(run, "loss") == [(1.0, 1.0), (2.0, 7.0), (3.0, 1.0 / 3)]
    assert series(run, "eval.loss") == [(3.0, 9.0)]
    assert series(run, "accuracy") == [(3.0, 0.5)]
    assert series(run, "eval.wer") == []
    assert names_of_series(run) == {"loss", "accuracy"}
    assert series(RunDir(tmp_path / "none"), "loss") == []


@pytest.mark.parametrize("points", [((3.0, 2.0),), ((1.0, 2.0), (9.0, 2.0))])
def test_a_value_that_does_not_change_is_drawn_in_the_middle(points: tuple[tuple[float, float], ...]) -> None:
    page = plot_page("m", [Curve("r", points)], (30, 10), braille=False).splitlines()
    assert [number for number, line in enumerate(page[1:6]) if "*" in line] == [2]
