"""Which way a metric is better, and which run of several has the best value of one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from orchestrator.errors import StoreError, UsageError
from orchestrator.runs.logs import result_of
from orchestrator.runs.store import RunDir, read_lines


class Better(StrEnum):
    """Which of two values of a metric is the better one."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True)
class JobMetric:
    """The metric by which a job's runs are judged; without `better`, the words of its name decide."""

    name: str
    better: Better | None = None


@dataclass(frozen=True)
class Ranked:
    """A run and its value; rank 1 is the best, None has none."""

    run_id: str
    state: str
    values: Mapping[str, str]  # of its point
    value: float | None
    rank: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON types."""
        return asdict(self)


# -- which way is better

_LOWER: Final = frozenset((
    "loss", "losses", "error", "errors", "err", "errs", "perplexity", "ppl", "nll", "entropy", "crossentropy",
    "xent", "bce", "kl", "kld", "divergence", "penalty", "cost", "regret", "residual", "uncertainty", "distance",
    "wer", "cer", "ter", "der", "eer", "mae", "mse", "msle", "mape", "smape", "rmse", "rmsle", "nrmse", "brier",
    "ece", "fid", "kid", "fvd", "lpips", "bpb", "bpc", "bpd", "bits", "fpr", "fnr", "false", "time", "duration",
    "latency", "seconds", "ms", "memory",
))  # fmt: skip
# A name without a known word is better higher: these are for names that hold one of the others too (`wer_confidence`).
_HIGHER: Final = frozenset((
    "accuracy", "acc", "confidence", "certainty", "power", "f1", "auc", "auroc", "bleu", "rouge", "map", "ap",
    "miou", "iou", "dice", "precision", "recall", "score", "reward", "likelihood", "psnr", "ssim", "r2",
    "throughput",
))  # fmt: skip
_NEGATED: Final = ("neg", "negative")
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*|[0-9]+")
_JOINED: Final = re.compile(r".+(loss|error|perplexity|entropy)")  # valloss, logloss


def better_of(metric: str, of_job: JobMetric | None = None) -> Better:
    """Return which way a metric is better: as the job says of this very name, else by the name's words.

    Words are parted by `_`, `-`, `.`, `/` and a change of case, and the last one that is known decides; what follows
    `per` is a unit, and `neg` or `negative` in front turns the meaning round. Without a known word, higher is better.
    """
    if of_job is not None and of_job.better is not None and of_job.name == metric:
        return of_job.better
    words = [word.lower() for word in _WORD.findall(metric)]
    for position, word in reversed(list(enumerate(words))):
        known = _meaning(word)
        if known is None or (position and words[position - 1] == "per"):
            continue
        is_negated = any(before in _NEGATED for before in words[:position])
        return (Better.HIGHER if known is Better.LOWER else Better.LOWER) if is_negated else known
    return Better.HIGHER


def _meaning(word: str) -> Better | None:
    for spelt in (word, word.rstrip("0123456789")):
        if spelt in _LOWER or _JOINED.fullmatch(spelt):
            return Better.LOWER
        if spelt in _HIGHER:
            return Better.HIGHER
    return None


def metric_of_job(record: Mapping[str, Any] | None) -> JobMetric | None:
    """Return the metric that the job of a run's record names; None where it names none."""
    job = (record or {}).get("job")
    metric = job.get("metric") if isinstance(job, Mapping) else None
    if not isinstance(metric, Mapping) or not isinstance(metric.get("name"), str):
        return None
    said = metric.get("better")
    return JobMetric(metric["name"], Better(said) if said in tuple(Better) else None)


# -- which run is best


def metrics_of(run: RunDir) -> dict[str, float]:
    """Return the numbers that a run has left: those of its result, else the newest of each name among its metrics."""
    found: dict[str, float] = {}
    try:
        lines = [*read_lines(run.path / "metrics.jsonl"), result_of(run) or {}]
    except StoreError:
        return {}
    for line in lines:
        found.update({name: float(value) for name, value in line.items() if _is_number(value)})
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def ranked(rows: Iterable[Ranked], *, better: Better) -> list[Ranked]:
    """Return the rows by their value, the best first; equal values share a rank, and those without one come last."""
    rows = list(rows)
    with_value = [row for row in rows if row.value is not None]
    found: list[Ranked] = []
    in_order = sorted(with_value, key=lambda row: row.value or 0.0, reverse=better is Better.HIGHER)
    for position, row in enumerate(in_order, 1):
        same = found and found[-1].value == row.value
        found.append(Ranked(row.run_id, row.state, row.values, row.value, found[-1].rank if same else position))
    return [*found, *(row for row in rows if row.value is None)]


def check_metric(metric: str, found: Sequence[Mapping[str, float]]) -> None:
    """Raise UsageError where no run has the metric; it names those that are there."""
    if not any(metric in each for each in found):
        raise UsageError(f"no run of these has a metric '{metric}'", names_of(found))


def names_of(found: Sequence[Mapping[str, float]]) -> str:
    """Return which metrics the runs have, as a hint."""
    names = sorted({name for each in found for name in each})
    return f"they have: {', '.join(names)}" if names else "none of them has left a number yet"
