"""What a sweep on this machine costs: its submit, the start of its points, and the disk that a point needs.

`--against PATH` names the `orch` of another commit, with which each measurement is paired.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from launches import workplace
from pairs import ROOT, Load, Pairs, interleave, print_row

OURS = ROOT / ".venv/bin/orch"
POINTS, FILES, FILE_BYTES, AT_ONCE = 500, 2000, 4096, 8
STAMP = "cat /proc/uptime >$ORCH_OUTPUT_DIR/stamp"


def main() -> None:
    """Print the rows of all measurements."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", type=Path, required=True, help="the orch of the other commit")
    parser.add_argument("--pairs", type=int, default=5)
    asked = parser.parse_args()
    for what, measure, unit, digits in (
        (f"`orch submit --sweep`, {POINTS} points on this machine, until it returns", submit, "s", 2),
        (f"{AT_ONCE} points with {FILES:,} files of {FILE_BYTES} B: from the submit to the last rank", start, "s", 2),
        (f"disk of a point with {FILES:,} files of {FILE_BYTES} B", disk, "MiB", 1),
    ):
        _row(what, measure, unit, digits, asked.against, asked.pairs)


def _row(what: str, measure: Callable[[Path], float], unit: str, digits: int, other: Path, count: int) -> None:
    load = Load()
    pairs: Pairs = interleave(lambda: measure(OURS), lambda: measure(other), 1 if measure is disk else count)
    ratios = sorted(pairs.ratios)
    shown = f"{ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
    print_row(what, "the other commit", "-", shown, str(len(ratios)), pairs.medians(unit, digits), "-", str(load))


class _Place:
    """A folder with a job, and with the state of one `orch`."""

    def __init__(self, orch: Path, folder: Path, files: int = 0) -> None:
        self.orch, self.folder, self.home = orch, folder, folder / "home"
        (self.folder / "job").mkdir()
        (self.folder / "job/job.yaml").write_text(f"command: [sh, -c, '{STAMP}']\n")
        (self.folder / "job/p.yaml").write_text("kind: local\nnproc_per_node: 1\n")
        for number in range(files):
            (self.folder / f"job/file_{number}.py").write_bytes(os.urandom(FILE_BYTES))

    def call(self, *words: str) -> str:
        """Run orch and return what it printed."""
        done = subprocess.run([self.orch, *words], env={**os.environ, "ORCH_HOME": str(self.home)}, check=True,
                              cwd=self.folder / "job", capture_output=True, text=True)  # fmt: skip
        return done.stdout

    def sweep(self, points: int, *words: str) -> float:
        """Submit a sweep. Return the time until the command returned."""
        began = time.monotonic()
        self.call("submit", "job.yaml", "-p", "p.yaml", "--sweep", f"job.env.N=1..{points}", *words)
        return time.monotonic() - began


def submit(orch: Path) -> float:
    """Return the seconds of a submit whose points wait, so that none of them starts meanwhile."""
    with workplace() as folder:
        place = _Place(orch, folder)
        first = place.call("submit", "job.yaml", "-p", "p.yaml", "--set", "job.command=[sleep, '600']").strip()
        taken = place.sweep(POINTS, "--after", first)
        place.call("cancel", "last", "--now")
        place.call("cancel", first, "--now")
    return taken


def start(orch: Path) -> float:
    """Return the seconds from the submit to the moment at which the last of the points ran."""
    with workplace() as folder:
        place = _Place(orch, folder, FILES)
        began = float(Path("/proc/uptime").read_text().split()[0])
        place.sweep(AT_ONCE, "--parallel", str(AT_ONCE))
        place.call("wait", "last")
        stamps = [float(path.read_text().split()[0]) for path in place.home.glob("runs/*/outputs/stamp")]
        assert len(stamps) == AT_ONCE
    return max(stamps) - began


def disk(orch: Path) -> float:
    """Return the MiB of a point's own folder after its end."""
    with workplace() as folder:
        place = _Place(orch, folder, FILES)
        place.sweep(1)
        place.call("wait", "last")
        (run,) = place.home.glob("runs/*")
        said = subprocess.run(["du", "-sk", run], check=True, capture_output=True, text=True).stdout
    return int(said.split()[0]) / 1024


if __name__ == "__main__":
    main()
