"""The optional columns of the table of runs: config, result, metrics, machines, git."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from orchestrator.protocol.json_text import flattened
from orchestrator.runs.record import RunRecord

Fact = str | int | float | bool
Facts = tuple[tuple[str, Fact], ...]
"""The values of a run by the names of their columns, such as `config.lr` or `git.commit`."""

MOST_OF_A_KIND: Final = 64  # the most columns of a kind, such as of the config
MOST_OF_A_TEXT: Final = 120  # the most characters of a value
_NO_CONFIG: Final = frozenset({
    "version", "name", "description", "args", "code", "env", "secrets", "notify", "track", "pass_env", "metric",
})  # fmt: skip
_OPTION: Final = re.compile(r"--?([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_SETTING: Final = re.compile(r"\+{0,2}([A-Za-z][\w./-]*)=(.*)", re.DOTALL)  # as in Hydra: `optimizer.lr=0.1`


def facts_of(
    record: RunRecord,
    result: Mapping[str, Any] | None,
    metrics: Mapping[str, float],
    code: Mapping[str, Any] | None,
    gpus: int = 0,
) -> Facts:
    """Return the values of a run's columns, from its record, result and newest metrics, and from the state of its code
    in git.
    """
    machines: dict[str, Any] = {"hosts": ", ".join(record.hosts), "nodes": record.nnodes, "gpus": gpus or None}
    git = {"commit": str(code.get("commit") or "")[:10], "dirty": code.get("dirty")} if code else {}
    kinds = {"config": config_of(record), "result": result or {}, "metric": metrics, "machine": machines, "git": git}
    return tuple(
        (f"{kind}.{name}", fact)
        for kind, values in kinds.items()
        for name, fact in islice(_flat(values), MOST_OF_A_KIND)
    )


def config_of(record: RunRecord) -> dict[str, Any]:
    """Return the settings of a run: the job's fields, the options of its program, and its values in a sweep."""
    fields = {name: value for name, value in record.job_document.items() if name not in _NO_CONFIG}
    training = fields.pop("training", None)
    args = record.job_document.get("args")
    found = dict(training) if isinstance(training, Mapping) else {}
    found |= options_of([str(word) for word in args]) if isinstance(args, list) else {}
    found |= {short_name(name): typed(value) for name, value in record.values.items()}
    return {**found, **{name: value for name, value in fields.items() if name not in found}}


def options_of(words: Sequence[str]) -> dict[str, Fact]:
    """Return a command line's options: the values of `--lr 0.1`, `--lr=0.1` and `lr=0.1`, and true for `--flag`."""
    found: dict[str, Fact] = {}
    left = list(reversed(words))
    while left:
        word = left.pop()
        if option := _OPTION.fullmatch(word):
            has_value = option[2] is None and bool(left) and not _OPTION.fullmatch(left[-1]) and left[-1] != "--"
            value = left.pop() if has_value else option[2]
            found[option[1]] = True if value is None else typed(value)
        elif setting := _SETTING.fullmatch(word):
            found[setting[1]] = typed(setting[2])
    return found


def typed(text: str) -> Fact:
    """Return the number or boolean that a text represents. Any other text is returned unchanged."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        value = float(text)
    except ValueError:
        return text
    if not math.isfinite(value):
        return text
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else value


def short_name(name: str) -> str:
    """Return the name of a sweep's key without its section: `lr` for `job.training.lr`."""
    return name.removeprefix("job.").removeprefix("training.").removeprefix("args.").lstrip("-")


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Fact]]:
    for name, value in flattened(values).items():
        if (fact := _fact(value)) is not None:
            yield name[:MOST_OF_A_TEXT], fact


def _fact(value: Any) -> Fact | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if abs(value) < 1e300 else None  # also None for NaN, whose comparison is False
    if isinstance(value, list | tuple):
        value = " ".join(map(str, _plain(value)))
    return value[:MOST_OF_A_TEXT] if isinstance(value, str) and value else None


def _plain(values: Iterable[Any]) -> Iterator[Any]:
    return (each for each in islice(values, MOST_OF_A_KIND) if isinstance(each, str | int | float))
