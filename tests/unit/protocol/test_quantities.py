"""The text of sizes, durations, rates and numbers; the page's formatter passes the same table in Chromium."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.protocol import quantities

TABLE = json.loads(Path(__file__).with_name("quantities.json").read_text())


@pytest.mark.parametrize(("kind", "given", "text"), TABLE)
def test_each_value_has_one_text(kind: str, given: list[Any], text: str) -> None:
    assert getattr(quantities, kind)(*given) == text


def test_what_is_not_finite_is_no_quantity() -> None:
    infinite = float("inf")
    assert (quantities.size(infinite), quantities.duration(infinite), quantities.rate(infinite, "B")) == ("-", "-", "-")
    assert (quantities.number(infinite), quantities.number(float("nan"))) == ("inf", "nan")
