"""Parses JSON from other machines and programs, which may have written anything."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MOST_LEVELS = 100  # limit on nested lists and objects, so that recursive code does not overflow the stack


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError if the text is not JSON, or is nested more than MOST_LEVELS deep."""
    if isinstance(text, bytes):  # json would check for UTF-16 first, which takes longer than the parsing
        text = text.decode("utf-8", "surrogatepass")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    _check_levels(text, value)
    return value


def objects_in(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON object in each line. Other lines are skipped, such as a line that a full disk has cut off."""
    for line in lines:
        with contextlib.suppress(ValueError):
            found = parse_json(line) if line.strip() else None
            if isinstance(found, dict):
                yield found


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values in nested objects by their dotted names, such as `a.b`. Empty objects are left out."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found.update(flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return found


def _check_levels(text: str, value: Any) -> None:
    if text.count("[") + text.count("{") <= MOST_LEVELS:
        return
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MOST_LEVELS):
        within = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in within for each in values if isinstance(each, (dict, list))]
        if not level:
            return
    raise ValueError("the JSON is nested too deeply")
