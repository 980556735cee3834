"""How long orch took over a fault, by the run's own events: docs/failures.md has what the tests printed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TELLS = (
    "attempt_failed", "cancel", "found_lost", "gave_up", "launcher_killed", "lost_node", "signal", "starting_again",
    "stopping", "time_limit", "trouble",
)  # fmt: skip


def seconds_after(run: Path) -> float | None:
    """From the first event that tells of a fault to the next start of the ranks, or the verdict; None without one."""
    events = sorted(_events(run), key=lambda event: float(event["time"]))
    told = next((float(event["time"]) for event in events if _tells(event)), None)
    if told is None:
        return None
    ends = [float(event["time"]) for event in events if event["kind"] == "go"]
    verdict = run / "verdict.json"
    ends += [verdict.stat().st_mtime] if verdict.exists() else []
    return min((end - told for end in ends if end > told), default=None)


def print_all(runs: Path, test: str) -> None:
    """Print it of each run of this folder: a line a run, which pytest shows with -rP or -s; or into the file $TOOK."""
    for run in sorted(runs.glob("*")):
        if (seconds := seconds_after(run)) is not None:
            line = f"took {seconds:.1f} s: {test}"
            print(line)
            if os.environ.get("TOOK"):
                with open(os.environ["TOOK"], "a") as file:
                    file.write(f"{line}\n")


def _tells(event: dict[str, Any]) -> bool:
    kind = event["kind"]
    if kind == "rank_exit":
        return event.get("code") != 0
    return kind in TELLS or (kind == "gang_ended" and event.get("outcome") != "succeeded")


def _events(run: Path) -> Iterator[dict[str, Any]]:
    for path in (run / "events.jsonl", *run.glob("nodes/*/events.jsonl")):
        for line in path.read_text().splitlines() if path.exists() else ():
            if line.endswith("}"):
                yield json.loads(line)
