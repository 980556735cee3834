"""The server's answers to the web page, as JSON types. They come from the files of runs. Except for `watched_log`, no
machine is contacted and nothing is written.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

from orchestrator.errors import OrchError, StoreError, UsageError
from orchestrator.protocol.reading import opened
from orchestrator.runs.files import checkpoints, metrics
from orchestrator.runs.files.logs import Selection, log_files
from orchestrator.runs.files.metrics import default_metric
from orchestrator.runs.files.outputs import Output, outputs_of
from orchestrator.runs.files.written_metrics import HOW_TO_WRITE, is_number
from orchestrator.runs.record import RunRecord
from orchestrator.runs.run_id import sweep_of
from orchestrator.runs.store import RunDir
from orchestrator.views.heat import HeatMap
from orchestrator.views.json_types import to_json
from orchestrator.views.reader import Reader
from orchestrator.views.run import RunView, worst_ranks
from orchestrator.views.runs import RunRow
from orchestrator.web import contents
from orchestrator.web.contents import number_of
from orchestrator.web.signatures import signatures_of

Json = dict[str, Any]
Query = Mapping[str, str]
_Value = TypeVar("_Value")

ALL_SECONDS: Final = 60.0  # the most time for reading all runs when the server has started
MOST_OUTPUTS: Final = 2000
MOST_RANKS: Final = 100  # ranks in a list, in which failed ranks come first
MOST_IN_TROUBLE: Final = 5  # ranks in the overview of a run
MOST_CURVES: Final = 20
MOST_PANELS: Final = 24  # panels in one answer
MOST_POINTS: Final = 1000  # points of one curve; no panel has more pixels
MOST_VALUES: Final = 200_000  # values of one curve in a table
MOST_LINES: Final = 500  # lines of a log in one answer
MAP_COLUMNS, MAP_ROWS = 180, 160  # the most columns and rows of a heat map
_NOT_SHOWN: Final = ("env", "secrets")  # fields of a job that the page omits, because they may contain secrets


def rows(reader: Reader) -> list[Json]:
    """Return the table of all runs, the newest first."""
    return [row_json(row) for row in reader.runs(seconds=ALL_SECONDS).rows]


@lru_cache(maxsize=1 << 16)
def row_json(row: RunRow) -> Json:
    """Return one row of the table as JSON types. The result is cached, because most rows never change."""
    found: Json = to_json(row)
    return {**found, "facts": dict(row.facts)}


def run_page(reader: Reader, name: str, *, is_first: bool = False) -> Json:
    """Return the contents of a run's page. Raises RunNotFoundError, or StoreError if the run can't be read.

    With `is_first`, the field `seen` has signatures of the run's files. By these signatures, the server later detects
    which files have changed.
    """
    run, problems = reader.find(name), list[str]()
    seen = signatures_of(run) if is_first else None  # before the run is read, so that no later change is missed
    view = reader.run(run, all_ranks=False)
    record = _readable(run.record, RunRecord.from_json(run.run_id, None), problems)
    hours = _readable(lambda: dict(reader.hours(run)), Json(), problems)
    _readable(lambda: _open(run.path / "metrics.jsonl"), None, problems)
    of_job = metrics.metric_of_job({"job": record.job_document})
    shown: Json = to_json(replace(view, nodes=(), ranks=worst_ranks(view.ranks)[:MOST_IN_TROUBLE]))
    return {
        **shown,
        "folder": _from_home(view.folder),
        "row": row_json(view.row),
        "nodes": len(view.nodes),
        "scheduler_job": view.job,
        "seen": seen,
        "problems": list(dict.fromkeys(problems)),
        "final": view.row.is_final,
        "sweep": sweep_of(run.run_id),
        "values": dict(record.values),
        "repeats": record.repeats,
        "hours": to_json(hours),
        "headline": _headline(reader.last_values(run), view, of_job.name if of_job is not None else None),
        "logs": _logs(run, view),
        "account": account.to_json() if (account := reader.account(run)) is not None else None,
        "job": to_json({key: value for key, value in record.job_document.items() if key not in _NOT_SHOWN}),
    }


def _from_home(path: str) -> str:
    """Return the path with the home folder shortened to ~, or unchanged if the path is outside the home folder."""
    home = os.path.expanduser("~")
    return f"~{path.removeprefix(home)}" if path.startswith(f"{home}/") else path


def _headline(numbers: dict[str, float], view: RunView, of_job: str | None) -> Json | None:
    """Return the most important metric with its newest value. This is the job's metric or, if it has no value, the
    default metric, such as the loss. Return None if the run has no metric.
    """
    beat = view.progress or {}
    of_beat = _numbers(beat.get("metrics")) | _numbers({"loss": beat.get("loss")})
    numbers = of_beat | numbers if view.row.is_final else numbers | of_beat  # an ended run has written its last values
    numbers |= _numbers(view.result)
    name = of_job if of_job in numbers else default_metric(numbers)
    return {"name": name, "value": numbers[name]} if name in numbers else None


def _numbers(values: object) -> dict[str, float]:
    items = values.items() if isinstance(values, Mapping) else ()
    return {str(name): float(value) for name, value in items if is_number(value)}


def _logs(run: RunDir, view: RunView) -> list[list[int]]:
    """Return [attempt, rank] of each log that is on this machine, or that can be copied from a node of the live run."""
    found = {(log.attempt, log.rank) for log in log_files(run, Selection(everything=True))}
    if not view.row.is_final and found:
        newest = max(attempt for attempt, _ in found)
        found |= {(newest, rank) for rank in range(view.row.world_size or 0)}
    return [list(each) for each in sorted(found)]


def files_page(reader: Reader, name: str) -> Json:
    """Return a run's checkpoints and outputs."""
    run, problems = reader.find(name), list[str]()
    found = _readable(lambda: checkpoints.all_of(run), list[checkpoints.Checkpoint](), problems)
    outputs = _readable(lambda: outputs_of(run), tuple[Output, ...](), problems)
    record = _readable(run.record, RunRecord.from_json(run.run_id, None), problems)
    best = checkpoints.best(found, metrics.metric_of_checkpoints({"job": record.job_document}))
    return {
        "problems": list(dict.fromkeys(problems)),
        "checkpoints": [
            {
                **{key: value for key, value in to_json(each.to_json()).items() if key != "files"},
                "name": each.path.name,
                "entries": contents.entries_of(each),
                "best": best[1] if best is not None and best[0] is each else "",
            }
            for each in found
        ],
        "outputs": [{"path": each.path, "bytes": each.bytes, "node": each.node} for each in outputs[:MOST_OUTPUTS]],
        "outputs_left": max(0, len(outputs) - MOST_OUTPUTS),
    }


def curves(reader: Reader, names: list[str], wanted: list[str], query: Query) -> Json:
    """Return the curves of several runs, in one panel for each metric. If the query has `every`, return all values."""
    try:
        smoothing = float(query.get("smoothing", "0"))
    except ValueError as error:
        raise UsageError("smoothing must be a number from 0 to 1") from error
    runs, most = [reader.find(name) for name in names[:MOST_CURVES]], MOST_VALUES if "every" in query else MOST_POINTS
    found = [reader.curves(runs, each, smoothing=smoothing, most=most) for each in wanted[:MOST_PANELS] or [""]]
    return {
        "panels": [{"metric": each.metric, "curves": to_json(each.curves)} for each in found if each.metric],
        "names": found[0].names,
        "kinds": found[0].kinds,
        "hint": "" if found[0].names else HOW_TO_WRITE,
    }


def trends(reader: Reader, names: list[str]) -> Json:
    """Return the trend of each run's main metric; null for a run that has no such metric or can't be read."""
    found: Json = {}
    for name in names[:MOST_CURVES]:
        found[name] = None
        with contextlib.suppress(OrchError):
            found[name] = to_json(reader.trend(reader.find(name)))
    return found


def totals(reader: Reader, name: str) -> Json:
    """Return the totals of a run: memory, GPUs, time per step, and hours."""
    run = reader.find(name)
    hours = _readable(lambda: dict(reader.hours(run)), Json(), [])  # the error, if any, is in the answer of `run_page`
    return {**to_json(reader.totals(run)), "hours": hours}


def ranks(reader: Reader, name: str) -> Json:
    """Return the worst ranks, and the number of the others."""
    rows = reader.run(reader.find(name)).ranks
    return {"ranks": to_json(worst_ranks(rows)[:MOST_RANKS]), "ranks_left": max(0, len(rows) - MOST_RANKS)}


def step_times(reader: Reader, name: str) -> Json:
    """Return the step times of the ranks as a heat map and a histogram."""
    run = reader.find(name)
    found = reader.step_time_map(run, columns=MAP_COLUMNS, rows=MAP_ROWS)
    return {"map": _map(found), "histogram": to_json(reader.step_times(run))}


def _map(found: HeatMap) -> Json:
    """Return a heat map as JSON types, with numbers rounded to the digits that the page shows."""
    places = 4 - math.floor(math.log10(found.high)) if found.high and found.high > 0 else 4
    rows = [
        {**vars(row), "values": [None if value is None else round(value, places) for value in row.values]}
        for row in found.rows
    ]
    return {**to_json(replace(found, rows=())), "rows": rows}


def pace(reader: Reader, name: str) -> Json:
    """Return sentences about the slowest rank, why it is slow, and unusual states of the run's machines."""
    run = reader.find(name)
    return {"pace": to_json(reader.pace(run)), "findings": reader.findings(run)}


OF_RUN: Final[Mapping[str, Callable[[Reader, str], Json]]] = {
    "files": files_page, "ranks": ranks, "step_times": step_times, "pace": pace, "totals": totals,
}  # fmt: skip
"""The answers that depend only on the run, by the last part of their address."""


def use(reader: Reader, name: str, measure: str | None) -> Json:
    """Return the use of a run's nodes, ranks and GPUs: a heat map of `measure`, or else the newest numbers."""
    view = reader.use(reader.find(name), measure, columns=MAP_COLUMNS if measure else 1, rows=MAP_ROWS)
    if measure:
        return {"map": _map(view.map)}
    nodes = [replace(each, newest=replace(each.newest, ranks=each.newest.ranks[:MOST_RANKS])) for each in view.nodes]
    return {"measures": dict(view.measures), "nodes": to_json(nodes)}


def watched_log(reader: Reader, name: str, query: Query) -> Json:
    """Return lines of a rank's log, as `log_page` does. As long as the page requests this log, copy the log from the
    rank's node to this machine.
    """
    reader.watched.ask(reader.find(name), number_of(query, "rank") or 0)
    return log_page(reader, name, query)


def log_page(reader: Reader, name: str, query: Query) -> Json:
    """Return lines of a rank's log: the last lines, the lines before or after an offset, or the lines around the
    next match.
    """
    log = reader.log(reader.find(name), number_of(query, "rank") or 0, number_of(query, "attempt"))
    before, after, start = (number_of(query, each) for each in ("before", "after", "from"))
    if words := query.get("find"):
        found = log.find(words, start or 0, backwards=query.get("backwards") == "1")
        page = None if found.offset is None else to_json(log.around(found.offset, MOST_LINES))
        return {"found": to_json(found), "page": page, "size": log.size}
    if before is not None:
        page = log.before(before, MOST_LINES)
    else:
        page = log.last(MOST_LINES) if after is None or after > log.size else log.after(after, MOST_LINES)
    return {"page": to_json(page)}


def diff_page(reader: Reader, one: str, other: str) -> Json:
    """Return the differences between two runs."""
    found: Json = to_json(reader.compare(reader.find(one), reader.find(other)))
    return found


def sweep_page(reader: Reader, sweep: str, metric: str | None) -> Json:
    """Return a sweep's points, ranked by a metric if they have it."""
    view = reader.sweep(sweep, metric)
    return {**to_json(view), "hint": "" if view.names else HOW_TO_WRITE}


def _readable(read: Callable[[], _Value], otherwise: _Value, problems: list[str]) -> _Value:
    """Return the result of `read`. If it raises an error because a file can't be read, add a message to `problems`, and
    return `otherwise`.
    """
    try:
        return read()
    except StoreError as error:
        problems.append(error.message)
    except OSError as error:
        problems.append(f"{error.filename} can't be read: {error.strerror}")
    return otherwise


def _open(path: Path) -> None:
    """Raise OSError if the file exists and can't be opened."""
    with contextlib.suppress(FileNotFoundError), opened(path):
        pass
