"""Drills with faults drawn at random, one after another: was all as promised, and what does the supervisor hold?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.patience import PATIENCE
from tests.result import Result

from .conftest import Soak

LINK = 8  # seconds, the least that limits.link may be
SHORT, LONG = 3, 14  # of a freeze: it costs nothing, or a start
FAULTS = ("rank", "launcher", "agent", "node", "supervisor", "short", "long")
DESCRIPTORS, MEMORY = 3, 8 << 20  # that a supervisor may have more of than after its first drill


@dataclass
class Ground:
    """A kind of cluster: the command line that drills a profile of two nodes there, and the supervisor's number.

    That one looks after a run that sleeps, so it stands all the while; in the state folder `alone` none does.
    """

    name: str
    orch: Callable[..., Result]
    options: tuple[str, ...]
    supervisor: Callable[[], int]
    alone: str
    drills: Counter[str] = field(default_factory=Counter)
    held: list[tuple[int, int]] = field(default_factory=list)

    def drill(self, soak: Soak, fault: str) -> None:
        """Do it once."""
        options = self.options
        if fault in ("short", "long"):
            options = (*options, "--freeze", f"{soak.chance.randrange(2)}:{SHORT if fault == 'short' else LONG}s")
        else:
            options = (*options, "--kill", fault)
        extra = {"ORCH_HOME": self.alone} if fault == "supervisor" else {}
        done = self.orch("drill", *options, "--json", timeout=2.5 * PATIENCE, **extra)
        self.drills[fault] += 1
        what = f"{self.name}, {' '.join(options[-2:])}"
        if not soak.check(done.out.startswith("["), f"{what}: {done.code} {done.err}"):
            return
        for report in done.json:
            soak.check(not report["differences"], f"{what}: {report['run_id']}: {report['differences']}")
        if fault != "supervisor":  # else it was another, and this one may not have loaded yet what a run needs
            self.held.append(held_by(self.supervisor()))

    def check_supervisor(self, soak: Soak) -> str:
        """Count a supervisor that holds more than after its first drill; return what it held."""
        if not soak.check(self.held, f"{self.name}: no drill came to its end"):
            return f"{self.name}: nothing"
        first, last = self.held[0], self.held[-1]
        said = f"{self.name}: descriptors {first[0]} to {last[0]}, memory {first[1] >> 10} to {last[1] >> 10} KiB"
        soak.check(last[0] <= first[0] + DESCRIPTORS, f"the supervisor keeps descriptors: {said}")
        soak.check(last[1] <= first[1] + MEMORY, f"the supervisor grows: {said}")
        return f"{said}, drills {dict(self.drills)}"


def held_by(pid: int) -> tuple[int, int]:
    """Return how many descriptors a process has open, and its private memory in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), int(status.split("RssAnon:")[1].split()[0]) << 10
