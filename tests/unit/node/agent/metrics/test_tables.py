"""CSV files, JSON lines and Trainer's state, as they grow, and as damaged ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.node.agent.metrics.following import MOST_OF_A_LINE, UnreadableError
from orchestrator.node.agent.metrics.tables import MOST_OF_A_STATE

from .written import REAL, File


def test_a_file_of_lightnings_csv_logger() -> None:
    found = File(REAL, "metrics.csv").values()
    assert [step for step, values in found if "train_loss" in values] == list(range(1, 48, 2))
    assert [step for step, values in found if "val_loss" in values] == [15, 31, 47]
    assert found[-1] == (47, {"epoch": 2.0, "val_loss": pytest.approx(-1.1594820)})


def test_a_state_of_trainer() -> None:
    found = File(REAL, "trainer_state.json").values()
    assert next((step, values["loss"]) for step, values in found if "loss" in values) == (2, 0.11589006334543228)
    assert [step for step, values in found if "eval_loss" in values] == [8]


def test_a_csv_file_that_is_rewritten_with_another_header(tmp_path: Path) -> None:
    file = File(tmp_path, "metrics.csv")
    file.append(b"step,loss\n1,0.5\n2,0.4\n3,0.")
    assert file.values() == [(1, {"loss": 0.5}), (2, {"loss": 0.4})]
    file.path.write_bytes(b"step,loss,acc\n1,0.5,\n2,0.4,\n3,0.3,0.9\n")
    assert file.values() == [(1, {"loss": 0.5}), (2, {"loss": 0.4}), (3, {"loss": 0.3, "acc": 0.9})]


def test_a_header_in_the_middle_of_a_csv_file(tmp_path: Path) -> None:
    file = File(tmp_path, "metrics.csv")
    file.append(b"step,loss\n1,0.5\nacc,step\n0.9,2\n,,,\nsome words\n\x00\n0.8,3\n")
    assert file.values() == [(1, {"loss": 0.5}), (2, {"acc": 0.9}), (3, {"acc": 0.8})]


def test_steps_are_counted_if_no_column_has_them(tmp_path: Path) -> None:
    file = File(tmp_path, "metrics.csv")
    file.append(b"loss,note\n0.5,a\n0.4,b\n")
    assert file.values() == [(1, {"loss": 0.5}), (2, {"loss": 0.4})]
    file.append(b"0.3,c\n")
    assert file.values() == [(3, {"loss": 0.3})]


def test_numbers_that_no_curve_has(tmp_path: Path) -> None:
    file = File(tmp_path, "metrics.jsonl")
    file.append(b'{"step": 1, "loss": NaN, "a": Infinity, "b": 1, "c": true, "d": "1", "e": 1' + b"0" * 400 + b"}\n")
    file.append(b'{"step": NaN, "loss": 1}\n{"step": 3, "loss": 2, "time": 1.7e9}\n')
    points = file.points()
    assert [(point.step, dict(point.values), point.time) for point in points] == [
        (1, {"b": 1.0}, None), (2, {"loss": 1.0}, None), (3, {"loss": 2.0}, 1.7e9),
    ]  # fmt: skip
    csv = File(tmp_path, "metrics.csv")
    csv.append(b"step,loss,x\n1,nan,inf\n2,1e999,3\n")
    assert csv.values() == [(2, {"x": 3.0})]


def test_lines_that_are_no_metrics_lose_no_other(tmp_path: Path) -> None:
    file = File(tmp_path, "metrics.jsonl")
    bad = [b"[" * 200_000, b'{"step": 1', b"[1]", b"\xff\xfe", b'"' + b"x" * MOST_OF_A_LINE * 3, b"{}", b""]
    file.append(b'{"step": 1, "loss": 1}\n' + b"\n".join(bad) + b'\n{"step": 2, "loss": 2}\n{"step": 3, "lo')
    assert file.values() == [(1, {"loss": 1.0}), (2, {"loss": 2.0})]
    file.append(b'ss": 3}\n')
    assert file.values() == [(3, {"loss": 3.0})]


@given(cuts=st.lists(st.integers(0, 300), max_size=8))
def test_every_line_is_read_once_however_the_file_grows(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    whole = b"step,loss\n" + b"".join(b"%d,%d\n" % (step, 10 * step) for step in range(20))
    file, found, at = File(tmp_path_factory.mktemp("growing"), "metrics.csv"), list[float](), 0
    for end in [*sorted(cuts), len(whole)]:
        file.append(whole[at:end])
        found += [step for step, values in file.values() if values == {"loss": 10 * step}]
        at = max(at, min(end, len(whole)))
    assert found == list(range(20))


def test_a_state_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    file, text = (
        File(tmp_path, "trainer_state.json"),
        json.dumps({"log_history": [{"step": 5, "loss": math.nan, "x": 1}]}),
    )
    file.append(text[:30].encode())
    assert file.values() == []
    file.append(text[30:].encode())
    assert file.values() == [(5, {"x": 1.0})]
    assert file.values() == []


@pytest.mark.parametrize(
    "text", ["[" * 200_000, "[1]", '{"log_history": {"a": 1}}', '{"log_history": [1, [], {}]}', ""]
)
def test_a_state_without_a_log(tmp_path: Path, text: str) -> None:
    file = File(tmp_path, "trainer_state.json")
    file.append(text.encode())
    assert file.values() == []


def test_a_state_that_is_too_large_is_not_loaded(tmp_path: Path) -> None:
    file = File(tmp_path, "trainer_state.json")
    file.append(b" ")
    with file.path.open("r+b") as opened:
        opened.truncate(MOST_OF_A_STATE + 1)
    with pytest.raises(UnreadableError, match="larger than 4 MiB"):
        file.points()
