"""Compares runs by a metric: selects the runs, ranks them, and finds the settings in which they differ."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.errors import RunNotFoundError, UsageError
from orchestrator.looking.run import state_or_why_not
from orchestrator.protocol.json_text import flattened
from orchestrator.protocol.metric import Better, JobMetric, better_of
from orchestrator.runs.files import metrics
from orchestrator.runs.files.metrics import Ranked
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.store import RunDir, newest_runs
from orchestrator.runs.sweeps import find_runs, newest_sweep, points_in

MOST_COLUMNS: Final = 4  # number of settings that are shown
_NO_SETTING: Final = ("version", "name", "code", "env", "secrets", "notify", "track", "pass_env")


@dataclass(frozen=True)
class Ranking:
    """Runs sorted by a metric, the best first. Runs without the metric come last."""

    title: str
    metric: str
    better: Better
    rows: tuple[Ranked, ...]


def selected_runs(root: Path, references: Sequence[str], name: str | None = None) -> tuple[str, list[RunDir]]:
    """Return (title, runs): the runs and sweeps in `references`, and all runs of the job called `name`.

    If neither is given, return the points of the newest sweep. Raises RunNotFoundError if there are no such runs.
    """
    if not references and name is None:
        sweep = newest_sweep(root)
        return sweep, points_in(root, sweep)
    found = [run for each in references for run in find_runs(root, each)]
    if name is not None:
        of_name = re.compile(rf"{re.escape(name)}-[a-z2-9]{{6}}")
        found += [run for run in newest_runs(root) if of_name.fullmatch(sweep_of(run.run_id) or run.run_id)]
    runs = list({run.run_id: run for run in found}.values())
    if not runs:
        raise RunNotFoundError(f"no run has the name '{name}'", "orch status -a lists all runs")
    sweeps = {sweep_of(run.run_id) for run in runs}
    one_sweep = sweeps.pop() if len(sweeps) == 1 else None
    return one_sweep or (runs[0].run_id if len(runs) == 1 else f"{len(runs)} runs"), runs


def rank(title: str, runs: Sequence[RunDir], metric: str | None, order: Better | None) -> Ranking:
    """Rank the runs by a metric. The default is the metric of the first job that names a metric.

    Raises UsageError if no job names a metric, or if no run has the metric.
    """
    found, of_job = [metrics.metrics_of(run) for run in runs], metric_of(runs)
    if metric is None and of_job is None:
        raise UsageError(f"the job of {title} names no metric", f"name one: --metric NAME; {metrics.names_of(found)}")
    name = metric or (of_job.name if of_job is not None else "")
    metrics.check_metric(name, found)
    better = order or better_of(name, of_job)
    return Ranking(title, name, better, ranked_by(name, better, runs, found))


def metric_of(runs: Sequence[RunDir]) -> JobMetric | None:
    """Return the metric of the first job that names one."""
    return next(filter(None, (metrics.metric_of_job(run.read("run.json")) for run in runs)), None)


def ranked_by(
    metric: str, better: Better, runs: Sequence[RunDir], found: Sequence[Mapping[str, float]]
) -> tuple[Ranked, ...]:
    """Return the ranked runs, the best first. `found` has the metrics of each run."""
    rows = [
        Ranked(run.run_id, state_or_why_not(run).state, values, its.get(metric))
        for run, its, values in zip(runs, found, differing_settings(runs), strict=True)
    ]
    return tuple(metrics.ranked(rows, better=better))


def differing_settings(runs: Sequence[RunDir]) -> list[dict[str, str]]:
    """Return the settings in which the runs differ. For a sweep these are the points' values; otherwise they are
    fields of the jobs.
    """
    records = [run.record() for run in runs]
    sweeps = {sweep_of(run.run_id) for run in runs}
    if len(sweeps) == 1 and None not in sweeps:
        return [dict(record.values) for record in records]
    jobs = [_fields(record.job_document) for record in records]
    names = list(dict.fromkeys(name for job in jobs for name in job))
    apart = [name for name in names if len({job.get(name, "-") for job in jobs}) > 1][:MOST_COLUMNS]
    return [{_short(name, apart): job.get(name, "-") for name in apart} for job in jobs]


def _fields(job: Mapping[str, Any]) -> dict[str, str]:
    found = flattened({name: value for name, value in job.items() if name not in _NO_SETTING})
    return {
        name: shlex.join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in found.items()
        if value is not None
    }


def _short(name: str, names: Sequence[str]) -> str:
    """Return the last part of a field's name, or the whole name if another name has the same last part."""
    last = name.rpartition(".")[2]
    return last if sum(each.rpartition(".")[2] == last for each in names) == 1 else name
