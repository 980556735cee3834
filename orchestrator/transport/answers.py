"""Checks the form of each answer from a machine's server, because the machine may be broken or hostile. This module has
no side effects.
"""

from __future__ import annotations

import math
from typing import Any, Final

from orchestrator.errors import BackendError
from orchestrator.protocol.answers import ANSWERS, Row, WithData
from orchestrator.protocol.json_text import parse_json

_SHAPES: Final = {verb: shape for verbs in ANSWERS.values() for verb, shape in verbs.items()}


def data_of(host: str, do: str, data: bytes) -> Any:
    """Return the JSON value in the bytes that follow a machine's answer to the request `do`. Raises BackendError, which
    names the host, if they are not the JSON that this request promises.
    """
    try:
        value = parse_json(data)
    except ValueError as error:
        raise BackendError(f"{host}: its answer to the request {do} can't be read: {error}") from error
    if not _fits(value, _SHAPES[do].data):
        raise BackendError(f"{host}: its answer to the request {do} has an unexpected form")
    return value


def is_answer(values: Any, do: str) -> bool:
    """Return True if the value has the form of a server's answer to the request `do`, or of a refusal."""
    if isinstance(values, dict) and "error" in values:
        return isinstance(values["error"], str)
    return _fits(values, _SHAPES[do])


def _fits(value: Any, shape: Any) -> bool:
    if isinstance(shape, WithData):
        return _fits(value, shape.values)
    if isinstance(shape, Row):
        if type(value) is list and float not in shape.shapes and tuple(map(type, value)) == shape.shapes:
            return True  # the usual case of a long list needs no call for each value
        return isinstance(value, list) and len(value) == len(shape.shapes) and all(map(_fits, value, shape.shapes))
    if isinstance(shape, tuple):
        return any(_fits(value, each) for each in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(each, shape[0]) for each in value)
    if isinstance(shape, dict) and str in shape:
        return isinstance(value, dict) and all(_fits(each, shape[str]) for each in value.values())
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(_has(value, name, inner) for name, inner in shape.items())
    if shape is float:
        return type(value) in (int, float) and math.isfinite(value)
    return value is None if shape is None else type(value) is shape


def _has(values: dict[str, Any], name: str, shape: Any) -> bool:
    known = name.removesuffix("?")
    return _fits(values[known], shape) if known in values else name.endswith("?")
