"""The goodput that docs/scale.md expects is what its formula gives for what bench/README.md has measured."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def goodput() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_goodput", ROOT / "bench" / "goodput.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["bench_goodput"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_half_of_an_interval_the_load_and_the_restart_are_lost_each_time(goodput: ModuleType) -> None:
    assert goodput.goodput(900.0, 50.0, load=20.0, every=60.0) == 0.9
    assert goodput.goodput(900.0, 0.0, every=0.0) == 1.0


def test_failures_come_as_often_as_there_are_gpus(goodput: ModuleType) -> None:
    (llama,) = goodput.RATES
    assert round(llama.between(16_384)) == 54 * 24 * 3600 // 419
    assert llama.between(8_192) == 2 * llama.between(16_384)


def test_the_page_shows_what_the_formula_gives(goodput: ModuleType) -> None:
    page = (ROOT / "docs" / "scale.md").read_text()
    assert [row for row in goodput.rows() if row not in page] == []


def test_the_restart_times_are_those_that_were_measured(goodput: ModuleType) -> None:
    measured = (ROOT / "bench" / "README.md").read_text()
    rank, _ = goodput.RESTARTS
    assert f"{rank.orch:g} / - s" in measured
    assert f"/ {rank.torchrun:g} s" in measured
    assert "3.51 / 11.29 s" in measured
