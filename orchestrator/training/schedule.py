"""The learning rate of each step as a part of the one asked for; of the step alone, so a resume changes none."""

import math


def part(kind: str, step: int, total: int, warmup: int = 0) -> float:
    """Return the part of the learning rate for the step after `step` done ones of `total`.

    It rises to 1 in the first `warmup` steps. Then `linear` and `cosine` fall, so that after the last step it is 0.
    """
    if step < warmup:
        return (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    if kind == "linear":
        return 1 - done
    return (1 + math.cos(math.pi * done)) / 2 if kind == "cosine" else 1.0
