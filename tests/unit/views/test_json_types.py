"""Any view as JSON types: also one that a user has filled with what has no end."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.views.json_types import MOST_DEPTH, TOO_DEEP, to_json


def test_what_is_nested_too_deeply_is_cut_off() -> None:
    deep: Any = "core"
    for number in range(100_000):
        deep = [deep] if number % 2 else {"x": deep}
    shown = json.dumps(to_json({"deep": deep, "loss": 1.0}))
    assert json.loads(shown)["loss"] == 1.0
    assert TOO_DEEP in json.loads(shown, strict=False)["deep"].__repr__()
    assert shown.count("[") + shown.count("{") == MOST_DEPTH
    while isinstance(deep, list | dict):  # taken apart piece by piece: Python's own end of it would be deep too
        deep = deep[0] if isinstance(deep, list) else deep["x"]


def test_what_json_has_no_number_for_is_null() -> None:
    assert to_json({"a": float("nan"), 1: (float("inf"), {2})}) == {"a": None, "1": [None, [2]]}
