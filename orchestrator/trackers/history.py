"""Reads the data that trackers receive: a run's metrics line by line, its parameters, and how it ended.

The name of a metric begins with the kind of its line, such as `train/loss` or `eval/accuracy`. Numbers of the result
are named `result/...`. All functions except `new_lines` have no side effects and read no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from orchestrator.protocol.json_text import flattened, objects_in
from orchestrator.protocol.reading import opened
from orchestrator.runs.files.written_metrics import OF_LINE, is_number
from orchestrator.runs.record import RunRecord
from orchestrator.runs.redaction import Redaction
from orchestrator.runs.state import Ending

MOST_BYTES: Final = 1 << 20  # bytes of metrics.jsonl that are read at a time
MOST_TEXT: Final = 500  # characters of a parameter or a tag; older MLflow servers accept no more
_INT64: Final = 2**63


@dataclass(frozen=True)
class MetricLine:
    """A line of metrics.jsonl: its numbers, keyed by name, and its step, attempt and time."""

    values: Mapping[str, float]
    step: int
    attempt: int
    time: float


def new_lines(path: Path, offset: int, redact: Redaction, *, has_ended: bool) -> tuple[list[MetricLine], int]:
    """Read the metric lines that begin at `offset` or later, at most MOST_BYTES bytes at a time. Return (the lines, the
    offset after the last of them).

    A last line without a newline is read only after the run's end.
    """
    try:
        with opened(path) as file:
            file.seek(offset)
            data = file.read(MOST_BYTES)
            is_all = not file.read(1)
    except FileNotFoundError:
        return [], offset
    end = data.rfind(b"\n") + 1
    if has_ended and is_all:
        end = len(data)
    elif not end and not is_all:
        end = len(data)  # a line this long is not a line of metrics
    return [line for each in data[:end].split(b"\n") if (line := metric_line(each, redact)) is not None], offset + end


def metric_line(data: bytes, redact: Redaction) -> MetricLine | None:
    """Parse a line of metrics.jsonl. Return None if it is not a JSON object with a step and at least one number."""
    line = next(objects_in([data]), {})
    if not is_number(step := line.get("step")):
        return None
    kind, attempt, time = line.get("kind"), line.get("attempt"), line.get("time")
    values = numbers_of(line, redact, f"{kind}/" if isinstance(kind, str) and kind else "", OF_LINE)
    if not values or abs(step) >= _INT64:
        return None
    moment = float(time) if is_number(time) and 0 <= time < 1e11 else 0.0
    return MetricLine(values, int(step), attempt if type(attempt) is int else 0, moment)


def numbers_of(
    values: Mapping[str, Any], redact: Redaction, prefix: str = "", without: frozenset[str] = frozenset()
) -> dict[str, float]:
    """Return the finite numbers among the values, keyed by name, except the names in `without`. Names are redacted and
    get the prefix.
    """
    return {
        _redacted(redact, f"{prefix}{name}"): float(value)
        for name, value in values.items()
        if name not in without and is_number(value)
    }


@lru_cache(maxsize=1 << 12)
def _redacted(redact: Redaction, name: str) -> str:
    return redact.text(name)


def parameters_of(record: RunRecord, redact: Redaction) -> dict[str, str]:
    """Return the run's parameters, keyed by name, such as its options and its number of nodes. Texts are redacted."""
    job = record.job_document
    program = next((kind for kind in ("training", "module", "script", "command") if job.get(kind)), "")
    found: dict[str, Any] = {"job": record.name, "profile": record.profile_name, "nodes": record.nnodes}
    if record.world_size is not None:
        found["world_size"] = record.world_size
    found |= flattened({program: job.get(program), "args": job.get("args")})
    found |= _options_in(job.get("args"))
    for name, value in record.values.items():
        found[f"sweep.{name}"] = value
    cleaned = redact.json({name: value for name, value in found.items() if value not in (None, "", [], ())})
    return {name: shortened(_words(value)) for name, value in cleaned.items()}


def _options_in(args: object) -> dict[str, str]:
    """Return the options `--name value`, `--name=value` and `--name` of a command line: a dict from `args.name` to the
    value. Users compare runs by these values.
    """
    words = [str(word) for word in args] if isinstance(args, list | tuple) else []
    found = {}
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not name.startswith("--") or len(name) == 2:
            continue
        after = words[position + 1] if position + 1 < len(words) else "--"
        is_value = not equals and (not after.startswith("-") or _is_negative(after))
        found[f"args.{name[2:]}"] = value if equals else after if is_value else "true"
    return found


def _is_negative(word: str) -> bool:
    try:
        return float(word) < 0
    except ValueError:
        return False


def _words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def shortened(text: str) -> str:
    """Cut the text to a length that every tracker accepts."""
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 3]}..."


def ending_in_words(ending: Ending, redact: Redaction) -> dict[str, str]:
    """Describe how the run ended: outcome, cause, reason, host and rank. The texts are redacted, and unknown values
    are left out.
    """
    verdict = ending.verdict
    values = {"outcome": str(verdict.outcome), "cause": str(verdict.cause), "reason": verdict.reason,
              "host": verdict.host, "rank": "" if verdict.rank is None else str(verdict.rank)}  # fmt: skip
    cleaned = redact.json({name: value for name, value in values.items() if value})
    return {name: shortened(text) for name, text in cleaned.items()}
