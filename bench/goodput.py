"""Which share of the time a training keeps, by a published rate of failures and by measured restarts.

Nothing is run: the restart times are those of README.md, which recovery.py, recovery_ssh.py and delays.py measure.
"""

from __future__ import annotations

from dataclasses import dataclass

HOUR = 3600.0
SAVE_EVERY = 600.0  # seconds between two checkpoints


@dataclass(frozen=True)
class Rate:
    """How often a training on so many GPUs is interrupted, as somebody has published it."""

    source: str
    gpus: int
    hours_between: float

    def between(self, gpus: int) -> float:
        """Return the seconds between two interruptions of a training on so many GPUs."""
        return self.hours_between * HOUR * self.gpus / gpus


@dataclass(frozen=True)
class Restart:
    """What happens, and the seconds until all ranks step again: known, stopped, started and joined."""

    what: str
    orch: float
    torchrun: float


RATES = (Rate("Llama 3 405B", 16_384, 54 * 24 / 419),)
RESTARTS = (
    Restart("a rank dies", 0.16, 12.5),
    Restart("a node is lost", 10.0 + 3.51 + 8.3, 300.0 + 11.29),
)


def goodput(between: float, restart: float, load: float = 0.0, every: float = SAVE_EVERY) -> float:
    """Return the share of the time that is kept; all arguments are seconds.

    between: of steps between two interruptions; restart: until the ranks step again; load: of the checkpoint, and until
    the program is as fast as before; every: between two checkpoints, of which half is done once more.
    """
    return between / (between + every / 2 + load + restart)


def rows() -> list[str]:
    """Return the rows of docs/scale.md."""
    found = []
    for rate in RATES:
        for gpus in (1024, 4096, rate.gpus):
            between = rate.between(gpus)
            for restart in RESTARTS:
                orch, torchrun = goodput(between, restart.orch), goodput(between, restart.torchrun)
                cells = (
                    f"{gpus:,}", f"{between / HOUR:.1f} h", restart.what,
                    f"{restart.orch:.4g} / {restart.torchrun:.4g} s",
                    f"{orch:.2%}", f"{torchrun:.2%}", f"{(1 - orch) / (1 - torchrun):.2f}x",
                )  # fmt: skip
                found.append(f"| {' | '.join(cells)} |")
    return found


if __name__ == "__main__":
    print(*rows(), sep="\n")
