"""The soak: what is promised, counted. A seeded sample in every test run, all of it with SOAK=1 (`make soak`).

The seed is printed at the end and stands in every assertion's message; SOAK_SEED=N repeats a run. A full run prints
one line per count that can be pasted into bench/README.md.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.local.conftest import bare_python, orch, project  # noqa: F401 (fixtures, used by name)

FULL = os.environ.get("SOAK") == "1"
SEED = int(os.environ["SOAK_SEED"])


@dataclass
class Soak:
    """One counted test: its own random numbers, and what failed."""

    test: pytest.Item
    chance: random.Random
    begun: float = field(default_factory=time.monotonic)
    failures: list[str] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Is this the whole count, not the sample?"""
        return FULL

    def of(self, full: int, sample: int) -> int:
        """How many this time."""
        return full if FULL else sample

    def fail(self, what: object) -> None:
        """Count a failure; the test goes on."""
        self.failures.append(str(what))

    def check(self, true: object, what: object) -> bool:
        """Count a failure unless `true`."""
        if not true:
            self.fail(what)
        return bool(true)

    def end(self, what: str, count: int) -> None:
        """Write the row, and fail the test where anything failed."""
        seconds = time.monotonic() - self.begun
        row = f"| {what} | {count} | {len(self.failures)} | {seconds:.0f} s | {commit()} |"
        self.test.user_properties.append(("soak", row))
        shown = "\n\n".join(failure[:2000] for failure in self.failures[:400])
        if self.failures:
            pytest.fail(f"{len(self.failures)} of {count} ({what}); SOAK_SEED={SEED}\n{shown}", pytrace=False)


def commit() -> str:
    """The commit that is measured, with a + where the working tree has changes."""
    here = Path(__file__).parent
    try:
        head, dirty = (
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=False).stdout.strip()
            for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except OSError:
        return "?"
    return (head or "?") + ("+" if dirty else "")


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> Soak:
    """The counter of one test; its random numbers depend on the seed and the test's name only."""
    return Soak(request.node, random.Random(f"{SEED} {request.node.name}"))
