"""The tools of `orch mcp`. They do the same as commands of orch, and return bounded and redacted JSON. No tool prints
anything.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import groupby
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from orchestrator.errors import UsageError
from orchestrator.looking import run as looking
from orchestrator.looking import status as known
from orchestrator.looking.account import account_of
from orchestrator.looking.logs import line_filter, logs_there
from orchestrator.looking.state import state_of
from orchestrator.mcp.bounds import answer, length_of
from orchestrator.mcp.searching import MOST_LINES, SECONDS, newest_matches, newest_of
from orchestrator.runs.files.logs import LogFile, Selection, Tail
from orchestrator.runs.files.metrics import Series, default_metric, metric_of_job
from orchestrator.runs.files.samples import newest_samples
from orchestrator.runs.files.written_metrics import HOW_TO_WRITE
from orchestrator.runs.findings import findings, in_words
from orchestrator.runs.leaving import redaction_of_message, unknown_secrets
from orchestrator.runs.store import RunDir, find_run
from orchestrator.supervisor.background import attended_root
from orchestrator.views.curves import curve_of

MOST_LOG: Final = 60_000  # characters of a log in one answer
MOST_LINE: Final = 1 << 16  # characters of one line that are read
_OF_A_ROW: Final = (
    "run_id", "name", "profile", "state", "created", "started", "ended", "restarts", "world_size", "sweep", "labels",
    "progress", "last_line", "detail",
)  # fmt: skip
# fields of a run's page that the tool omits, because they are long and repeat the job and the profile
_NOT_SHOWN: Final = ("record", "notifications")

Answer = dict[str, Any]
Run = Annotated[str, Field(description="A run's id, a unique prefix of it, its job's name, or last")]


def list_runs(limit: Annotated[int, Field(ge=1, le=100, description="How many of the newest runs")] = 20) -> Answer:
    """List the newest runs and all runs that have not ended, newest first: state, progress, why it failed.

    A run has ended if its state is succeeded, failed or cancelled.
    """
    root = attended_root()
    found = known.rows(root, everything=False, limit=limit)[: 2 * limit]
    runs = [
        {**{name: row[name] for name in _OF_A_ROW}, "reason": (row["verdict"] or {}).get("reason")} for row in found
    ]
    folders = [RunDir(root / "runs" / row["run_id"]) for row in found]
    return _answer({"runs": runs}, *folders)


def status(
    run: Run,
    wait_seconds: Annotated[float, Field(ge=0, le=60, description="Wait at most this long for the run's end")] = 0,
) -> Answer:
    """Return the state of one run: its nodes, ranks, attempts, progress, result, and the verdict if it has ended."""
    folder = find_run(attended_root(), run)
    if wait_seconds:
        looking.wait(folder, timeout=wait_seconds)
    page = {name: value for name, value in known.page(folder).items() if name not in _NOT_SHOWN}
    return _answer(page, folder)


def why(run: Run) -> Answer:
    """Explain why a run ended as it did: the rank that failed first, its traceback, and how each attempt ended."""
    folder = find_run(attended_root(), run)
    state = state_of(folder)
    account, told = account_of(folder, state), state.to_json()
    names = ("run_id", "state", "detail", "verdict", "attempts")
    said = {**{name: told[name] for name in names}, "account": account.to_json() if account is not None else None}
    return _answer(said, folder)


def logs(
    run: Run,
    rank: Annotated[int, Field(ge=0)] = 0,
    lines: Annotated[int, Field(ge=1, le=500, description="How many of the last lines")] = 100,
    since: Annotated[str | None, Field(description="Only lines since then: 10m, 14:30, 2026-11-22T14:30")] = None,
    grep: Annotated[
        str | None,
        Field(
            max_length=1000,
            description="Only lines in which this Python regular expression is found, in the newest 16 MiB of the log",
        ),
    ] = None,
    level: Literal["debug", "info", "warning", "error", "critical"] | None = None,
) -> Answer:
    """Return the last lines that a rank has printed, by attempt.

    Before any rank has started, they are the output of the setup lines and launchers.
    """
    folder = find_run(attended_root(), run)
    selection = logs_there(folder, Selection(rank))
    reader = Tail(folder, selection, line_filter(since, None, level, time.time()))
    reader.skip_to_last(lines if grep is None else MOST_LINES)
    redaction, read, stopped = redaction_of_message(folder), reader.read(ended=True), {}
    last = list(deque(read, lines)) if grep is None else newest_of(read)
    if grep is not None:
        found, left = newest_matches(grep, [line for _, line in last], lines)
        last = [last[at] for at in found]
        if left:
            why = f"the expression took longer than {SECONDS:g} s: {left:,} older lines were not searched"
            stopped = {"stopped": f"{why}; use since, level or a simpler expression"}
    texts = redaction.json([line for _, line in last])  # together, because a key may have several lines
    texts = [text[:MOST_LINE] for text in texts]  # after the redaction, which does not find a part of a secret
    shown = _newest(list(zip((log for log, _ in last), texts, strict=True)))
    attempts = [{"attempt": attempt, "lines": [line for _, line in of]} for attempt, of in groupby(shown, _attempt_of)]
    told = {"run_id": folder.run_id, "rank": None if selection.launchers else rank, "attempts": attempts}
    return _answer({**told, **stopped}, folder)


def metrics(
    run: Run,
    metric: Annotated[str, Field(description="The name of a metric; by default the job's, or else the loss")] = "",
    points: Annotated[int, Field(ge=4, le=500, description="How many points of its curve")] = 100,
) -> Answer:
    """Return a metric of a run by step, the names of all its metrics, and how busy its machines are."""
    folder = find_run(attended_root(), run)
    series = Series(folder)
    series.look()
    names = sorted(series.names() | series.names_of_kinds())
    of_job = metric_of_job(folder.read("run.json"))
    name = metric or (of_job.name if of_job is not None and of_job.name in names else default_metric(names))
    curve = curve_of(folder.run_id, series.values(name), most=points)
    if curve is None and metric:
        raise UsageError(
            f"run {folder.run_id} has no metric '{metric}'", "leave the metric out, and the answer lists all metrics"
        )
    samples, hosts = newest_samples(folder), {node.node: node.host for node in state_of(folder).nodes}
    machines = [{"node": node.node, "host": hosts.get(node.node), **node.samples[-1].to_json()} for node in samples]
    return _answer(
        {
            "run_id": folder.run_id,
            "names": names,
            "metric": name if curve is not None else None,
            "curve": curve,
            "missing": "" if names else HOW_TO_WRITE,
            "findings": in_words(findings(samples), hosts),
            "machines": machines,
        },
        folder,
    )


def submit(
    job: Annotated[str, Field(description="A YAML file, or the name of a job that comes with orch")],
    profile: Annotated[str, Field(description="A profile's name or file: where the job runs")],
    sets: Annotated[dict[str, Any] | None, Field(description='Fields to override: {"job.training.lr": 0.1}')] = None,
    nodes: Annotated[int | None, Field(ge=1)] = None,
    nproc_per_node: Annotated[int | None, Field(ge=1)] = None,
    name: str | None = None,
    resume: Annotated[str | None, Field(description="A run from whose newest checkpoint this run starts")] = None,
    after: Annotated[str | None, Field(description="A run that has to succeed first")] = None,
) -> Answer:
    """Start a run, and return its id at once. The run continues without this server."""
    from orchestrator.api import submit as start

    started = start(
        job, profile, sets=sets, nodes=nodes, nproc_per_node=nproc_per_node, name=name, resume=resume, after=after
    )
    folder = RunDir(started.folder)
    return _answer({"run_id": started.id, "folder": str(started.folder)}, folder)


def cancel(
    run: Annotated[str, Field(description="A run's id, or a prefix that no other run has")],
    now: Annotated[bool, Field(description="Kill at once, without a last checkpoint")] = False,
) -> Answer:
    """Stop a run with a checkpoint, wait for its end, and return what is left of it on each machine."""
    from orchestrator.operations.runs import cancel as cancel_run

    folder = find_run(attended_root(), run, newest=False)
    done = cancel_run(folder.root, folder, now=now)
    told = {"run_id": folder.run_id, "state": done.state.state, "said": done.said, "is_proven": done.is_proven}
    return _answer({**told, "proofs": [vars(proof) for proof in done.proofs]}, folder)


READING: Final = (list_runs, status, why, logs, metrics)
ACTING: Final = (submit, cancel)


def _answer(value: Answer, *folders: RunDir) -> Answer:
    """Return an answer without the secrets of these runs. It names the secrets whose values are not known here."""
    unknown = {"not_masked": names} if (names := unknown_secrets(*folders)) else {}
    return answer({**value, **unknown}, redaction_of_message(*folders))


def _newest(lines: list[tuple[LogFile, str]]) -> list[tuple[LogFile, str]]:
    """Return the last lines whose texts together have at most MOST_LOG characters, but at least one line."""
    left = MOST_LOG
    for number, (_, line) in enumerate(reversed(lines)):
        left -= length_of(line)
        if left < 0:
            return lines[-max(1, number) :]
    return lines


def _attempt_of(line: tuple[LogFile, str]) -> int:
    return line[0].attempt
