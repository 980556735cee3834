"""Describes all runs as OpenMetrics text for Prometheus: the number of runs in each state, and the live runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from orchestrator.runs.state import RunStatus
from orchestrator.views.runs import RunRow, RunsView

MEDIA_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def text_of(view: RunsView) -> str:
    """Return OpenMetrics text about the runs in the table `view`."""
    live = [row for row in view.rows if not row.is_final]
    lines = _family(
        "orch_runs", "Runs by their state.", [({"state": each}, view.states.get(each, 0)) for each in RunStatus]
    )
    lines += _family("orch_run_ranks", "Ranks of a run that goes on.", [(_labels(row), row.world_size) for row in live])
    lines += _family(
        "orch_run_restarts", "Restarts of a run that goes on.", [(_labels(row), row.restarts) for row in live]
    )
    started = [(_labels(row), row.started) for row in live]
    lines += _family("orch_run_start_seconds", "When the ranks of a run that goes on were started.", started)
    return "\n".join([*lines, "# EOF", ""])


def _labels(row: RunRow) -> dict[str, str]:
    return {"run": row.run_id, "name": row.name, "profile": row.profile}


def _family(name: str, text: str, samples: Iterable[tuple[Mapping[str, str], object]]) -> list[str]:
    lines = [f"# TYPE {name} gauge", f"# HELP {name} {text}"]
    for labels, value in samples:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            words = ",".join(f'{key}="{_escaped(word)}"' for key, word in labels.items())
            lines.append(f"{name}{{{words}}} {value}")
    return lines


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
