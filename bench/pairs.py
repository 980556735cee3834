"""What every measurement here shares: interleaved pairs, the ratio within each pair, and the machine it was taken on.

`python bench/pairs.py` prints the machine and the table's head; each of the other scripts prints its own rows.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("what", "against", "target", "ratio: median (min-max)", "pairs", "medians", "verdict and notes", "load")


@dataclass
class Pairs:
    """The two sides of a comparison; a value is None where that side did not get there."""

    ours: list[float | None] = field(default_factory=list)
    theirs: list[float | None] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Ours by theirs, for each pair in which both got there."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True) if a is not None and b is not None]

    def medians(self, unit: str, digits: int = 2) -> str:
        """The medians of both sides, with their unit."""
        sides = [[value for value in side if value is not None] for side in (self.ours, self.theirs)]
        return " / ".join(f"{statistics.median(side):,.{digits}f}" if side else "-" for side in sides) + f" {unit}"


def interleave(ours: Callable[[], float | None], theirs: Callable[[], float | None], count: int) -> Pairs:
    """Measure A B A B ...; what the machine does meanwhile then meets both sides alike."""
    pairs = Pairs()
    for number in range(1, count + 1):
        pairs.ours.append(ours())
        pairs.theirs.append(theirs())
        say(f"pair {number} of {count}: {pairs.ours[-1]} against {pairs.theirs[-1]}")
    return pairs


@dataclass(frozen=True)
class Target:
    """A limit of the ratio: at most, or at least."""

    limit: float
    at_least: bool = False

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}x"

    def verdict(self, ratio: float) -> str:
        """In words, with the distance where it is missed."""
        met = ratio >= self.limit if self.at_least else ratio <= self.limit
        return "met" if met else f"**falls short** ({ratio:.2f}x)"


class Load:
    """The machine's load average, before and after: what else ran belongs to the figure."""

    def __init__(self) -> None:
        self.before = os.getloadavg()[0]

    def __str__(self) -> str:
        return f"{self.before:.1f} → {os.getloadavg()[0]:.1f}"


def print_pairs(
    what: str, against: str, target: Target, pairs: Pairs, medians: str, load: Load, note: str = ""
) -> None:
    """Print one row of the table of bench/README.md."""
    ratios = pairs.ratios
    if not ratios:
        print_row(what, against, str(target), "not measured", "0", medians, note, str(load))
        return
    middle = statistics.median(ratios)
    verdict = "; ".join(part for part in (target.verdict(middle), note) if part)
    shown = f"{middle:.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
    print_row(what, against, str(target), shown, str(len(ratios)), medians, verdict, str(load))


def print_row(*cells: str) -> None:
    """Print a row as it is."""
    print(f"| {' | '.join(cells)} |", flush=True)


def say(text: str) -> None:
    """Progress goes to stderr, so that stdout is the table."""
    print(text, file=sys.stderr, flush=True)


def how_many(default: int) -> int:
    """The number of pairs from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=default)
    return max(1, parser.parse_args().pairs)


def program(name: str) -> str:
    """A console script of the environment that runs this."""
    return str(Path(sys.executable).with_name(name))


def machine() -> str:
    """The machine in one line."""
    model = _first_value("/proc/cpuinfo", "model name")
    memory = int(_first_value("/proc/meminfo", "MemTotal").split()[0]) / 1024**2
    parts = [
        f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB",
        f"Linux {platform.release().partition('-')[0]}",
        f"Python {platform.python_version()}, torch {_version('torch')}, torchvision {_version('torchvision')}",
        f"commit {_commit()}",
    ]
    return "; ".join(parts)


def _version(package: str) -> str:
    return version(package)


def _first_value(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return "?"


def _commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
        return done.stdout.strip() or "?"

    changed = git("status", "--porcelain", "--", "orchestrator") != "?"
    return git("rev-parse", "--short", "HEAD") + (" and uncommitted changes" if changed else "")


def head(columns: Sequence[str] = COLUMNS) -> str:
    """The head of the table."""
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


if __name__ == "__main__":
    print(f"{machine()}\n\n{head()}", flush=True)
