"""Computes the learning rate of each step, as a fraction of the full rate. The fraction depends only on the step."""

import math


def part(kind: str, step: int, total: int, warmup: int = 0) -> float:
    """Return the fraction of the learning rate for the next step, after `step` of `total` steps.

    The fraction rises to 1 in the first `warmup` steps. Then it falls to 0 at the last step if `kind` is `linear` or
    `cosine`.
    """
    if step < warmup:
        return (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    if kind == "linear":
        return 1 - done
    return (1 + math.cos(math.pi * done)) / 2 if kind == "cosine" else 1.0
