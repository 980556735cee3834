"""Decides whether lower or higher values of a metric are better, to rank runs and to keep checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from orchestrator.protocol.str_enum import StrEnum


class Better(StrEnum):
    """The better direction of a metric: lower or higher."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True)
class JobMetric:
    """The metric by which a job's runs are judged. If `better` is empty, the words in the metric's name decide."""

    name: str
    better: Better | None = None


_LOWER: Final = frozenset((
    "loss", "losses", "error", "errors", "err", "errs", "perplexity", "ppl", "nll", "entropy", "crossentropy",
    "xent", "bce", "kl", "kld", "divergence", "penalty", "cost", "regret", "residual", "uncertainty", "distance",
    "wer", "cer", "ter", "der", "eer", "mae", "mse", "msle", "mape", "smape", "rmse", "rmsle", "nrmse", "brier",
    "ece", "fid", "kid", "fvd", "lpips", "bpb", "bpc", "bpd", "bits", "fpr", "fnr", "false", "time", "duration",
    "latency", "seconds", "ms", "memory",
))  # fmt: skip
# For a metric without a known word, higher is better. So these words matter only in names that also have a word of the
# first list (`wer_confidence`).
_HIGHER: Final = frozenset((
    "accuracy", "acc", "confidence", "certainty", "power", "f1", "auc", "auroc", "bleu", "rouge", "map", "ap",
    "miou", "iou", "dice", "precision", "recall", "score", "reward", "likelihood", "psnr", "ssim", "r2",
    "throughput",
))  # fmt: skip
_NEGATED: Final = ("neg", "negative")
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*|[0-9]+")
_JOINED: Final = re.compile(r".+(loss|error|perplexity|entropy)")  # such as valloss, logloss


def better_of(metric: str, of_job: JobMetric | None = None) -> Better:
    """Return whether lower or higher values of a metric are better.

    The job decides if it states a direction for this name. Otherwise the words in the name decide. Words are separated
    by `_`, `-`, `.`, `/` and changes of case, and the last known word decides. A word after `per` is a unit, and `neg`
    or `negative` before a word reverses its meaning. Without a known word, higher is better.
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


def is_known(metric: str) -> bool:
    """Return whether the metric's name has a word that shows which direction is better."""
    return any(_meaning(word.lower()) is not None for word in _WORD.findall(metric))


def _meaning(word: str) -> Better | None:
    for spelt in (word, word.rstrip("0123456789")):
        if spelt in _LOWER or _JOINED.fullmatch(spelt):
            return Better.LOWER
        if spelt in _HIGHER:
            return Better.HIGHER
    return None


def kept_by(name: str, better: str) -> JobMetric | None:
    """Return the metric that decides which checkpoint is kept as the best, or None if the name is empty."""
    if not name:
        return None
    return JobMetric(name, Better(better) if better in tuple(Better) else None)
