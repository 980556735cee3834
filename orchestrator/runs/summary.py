"""Summarizes a run: job and profile with defaults filled in, versions, code, phases, exit codes, hours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from orchestrator.protocol.events import (
    AgentEnded,
    AgentStarted,
    AttemptFailed,
    Event,
    GangEnded,
    GaveUp,
    Go,
    Joined,
    LauncherImported,
    RankExit,
    Snapshot,
    Started,
    Submitted,
    of,
)
from orchestrator.protocol.typed import to_json
from orchestrator.runs.record import RunRecord

if TYPE_CHECKING:  # not imported at run time, because a submit needs little of this module
    from orchestrator.runs.files.samples import NodeSamples

HOUR: Final = 3600.0


def run_record(
    run: RunRecord,
    events: Iterable[Event],
    plan: Mapping[str, Any] | None = None,
    metrics: Iterable[Mapping[str, Any]] = (),
    now: float | None = None,
    samples: Iterable[NodeSamples] = (),
) -> dict[str, Any]:
    """Return a summary of the whole run as JSON types. Whatever has not ended yet is treated as if it ended at `now`.

    Durations within the gang are measured by node 0's monotonic clock. Only `queued` compares the clocks of two hosts.
    """
    events = list(events)
    nodes = _nodes(events)
    return {
        "job": run.job_document,
        "profile": run.profile_document,
        "job_file": run.job_file,
        "profile_file": run.profile_file,
        "repeats": run.repeats,
        "plan": plan,
        "hosts": [node.host for node in nodes.values()],
        "versions": _versions(run, events, nodes),
        "code": code_of(events),
        "phases": _phases(run, events, metrics),
        "attempts": _attempts(events),
        "hours": hours_of(events, now, samples),
    }


def hours_of(
    events: Iterable[Event], now: float | None = None, samples: Iterable[NodeSamples] = ()
) -> dict[str, float | None]:
    """Return the rank hours, core hours and GPU hours that the run used, and the watt-hours of its GPUs."""
    events = list(events)
    return {**_hours(events, _nodes(events), now), "gpu_watt_hours": _watt_hours(events, samples)}


def code_of(events: Iterable[Event]) -> dict[str, Any] | None:
    """Return the facts about the copied code: files, bytes, sha256, and git state. Return None if no copy is
    recorded.
    """
    return next((to_json(event, stamps=False) for event in of(events, Snapshot)), None)


def code_note(events: Iterable[Event]) -> str:
    """Return a note if the copied code had changes that are not committed in git; empty otherwise."""
    code = next(iter(of(events, Snapshot)), None)
    if code is None or not code.dirty:
        return ""
    parts = ["uncommitted changes"] if code.diff else []
    if untracked := code.untracked:
        parts.append(f"{len(untracked)} untracked file{'s' * (len(untracked) != 1)}")
    commit = (code.git or "")[:9]
    what = f"is commit {commit} with {' and '.join(parts) or 'changes'}" if commit else "has no git commit"
    return f"note: the code folder {what}; a snapshot of it is stored with the run"


def left_out_note(events: Iterable[Event]) -> str:
    """Return a note about code files that an ignore file excluded, or about linked checkpoints; "" for neither.

    Only a run on this machine has linked checkpoints, which are links to the user's own files.
    """
    code = next(iter(of(events, Snapshot)), None)
    if code is not None and code.left_out is not None:
        from orchestrator.runs.files.ignore_rules import left_out_words

        return left_out_words(code.left_out)
    if code is not None and code.linked is not None:
        from orchestrator.runs.files.laid_files import words_on_links

        return words_on_links(code.linked)
    return ""


def _nodes(events: list[Event]) -> dict[int, AgentStarted]:
    """Return the start event of each node's newest agent, by node."""
    found = {event.node: event for event in of(events, AgentStarted) if event.node is not None}
    return {node: found[node] for node in sorted(found)}


def _versions(run: RunRecord, events: list[Event], nodes: Mapping[int, AgentStarted]) -> dict[str, Any]:
    torch = {event.node: event.torch for event in of(events, LauncherImported)}
    return {
        "orch": run.orch,
        "python": run.python,
        "nodes": [
            {"node": node, "host": event.host, "python": event.python, "torch": torch.get(node)}
            for node, event in nodes.items()
        ],
    }


# -- phases


def _phases(run: RunRecord, events: list[Event], metrics: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the run's phases in order, each with name, attempt and seconds. Phases that did not occur are left out."""
    submits = [event.time for event in of(events, Submitted)]
    first = [event for event in events if event.node == 0]
    agents = of(first, AgentStarted)
    phases: list[dict[str, Any]] = []

    def add(name: str, seconds: float | None, attempt: int = 0) -> None:
        if seconds is not None:
            phases.append({"phase": name, "attempt": attempt, "seconds": round(max(0.0, seconds), 3)})

    submitted = submits[0] if submits else None
    add("submitting", _between(run.created or None, submitted))
    add("queued", _between(submitted, agents[0].time if agents else None))
    joined = _last_mono(of(first, Joined))
    add("joining", _between(agents[0].mono if agents else None, joined))
    add("importing", max((event.seconds or 0.0 for event in of(events, LauncherImported)), default=None))
    saves = _seconds_by_attempt(metrics, "save")
    evaluations = _seconds_by_attempt(metrics, "eval")
    before = joined
    for go in of(first, Go):
        attempt, end = go.attempt, _end_of(first, go.attempt)
        add("starting", _between(before, go.mono), attempt)
        add("running", _between(go.mono, end), attempt)
        add("saving", saves.get(attempt), attempt)
        add("evaluating", evaluations.get(attempt), attempt)
        before = end
    add("ending", _between(before, _last_mono(of(first, AgentEnded))), phases[-1]["attempt"] if phases else 0)
    return phases


def _end_of(first: list[Event], attempt: int) -> float | None:
    ends = (event for event in first if isinstance(event, GangEnded | AttemptFailed) and event.attempt == attempt)
    return next((event.mono for event in ends), None)


def _seconds_by_attempt(metrics: Iterable[Mapping[str, Any]], kind: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for line in metrics:
        seconds, attempt = line.get("seconds"), line.get("attempt")
        if line.get("kind") == kind and isinstance(seconds, int | float):
            number = attempt if type(attempt) is int else 0
            found[number] = found.get(number, 0.0) + float(seconds)
    return found


def _last_mono(events: Sequence[Event]) -> float | None:
    return events[-1].mono if events else None


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


# -- ends and use


def _attempts(events: list[Event]) -> list[dict[str, Any]]:
    """Return how every rank ended, for each attempt."""
    ends: dict[int, dict[str, Any]] = {}
    for event in of(events, RankExit):
        if event.attempt is not None:
            end = {"code": event.code, "signal": event.signal, "how": event.how}
            ends.setdefault(event.attempt, {})[str(event.rank)] = end
    return [
        {"attempt": attempt, "exits": dict(sorted(exits.items(), key=lambda item: int(item[0])))}
        for attempt, exits in sorted(ends.items())
    ]


def _hours(events: list[Event], nodes: Mapping[int, AgentStarted], now: float | None) -> dict[str, float]:
    """Return the rank hours, and the core and GPU hours of the hosts while agents ran. Each host is counted once."""
    spans: dict[str, tuple[float, float, int, int]] = {}
    named: dict[str, set[str]] = {}  # nodes on one host may have different GPUs
    ends = {event.node: event.time for event in events if isinstance(event, AgentEnded | GaveUp)}
    for node, event in nodes.items():
        ended = ends.get(node, now)
        if ended is None:
            continue
        first, last, cores, gpus = spans.get(event.host, (event.time, ended, 0, 0))
        names = named.setdefault(event.host, set())
        names.update(event.gpu_names)
        cores, gpus = max(cores, event.cores or 0), max(gpus, event.gpus or 0, len(names))
        spans[event.host] = (min(first, event.time), max(last, ended), cores, gpus)
    held = [(max(0.0, last - first), cores, gpus) for first, last, cores, gpus in spans.values()]
    return {
        "rank_hours": round(_rank_seconds(events, now) / HOUR, 6),
        "cpu_hours": round(sum(seconds * cores for seconds, cores, _ in held) / HOUR, 6),
        "gpu_hours": round(sum(seconds * gpus for seconds, _, gpus in held) / HOUR, 6),
    }


def gpus_of(events: Iterable[Event]) -> int:
    """Return the number of GPUs that the run uses on all its hosts. Each host is counted once."""
    by_host: dict[str, int] = {}
    for event in of(events, AgentStarted):
        by_host[event.host] = max(by_host.get(event.host, 0), event.gpus or 0)
    return sum(by_host.values())


def _watt_hours(events: list[Event], samples: Iterable[NodeSamples]) -> float | None:
    """Return the watt-hours that the GPUs used while agents ran on their nodes. Return None if no GPU reports its
    energy.
    """
    starts: dict[int | None, int] = {}
    joules: dict[tuple[int | None, int], float] = {
        (node.node, sample.start): sample.joules
        for node in samples
        for sample in node.samples
        if sample.joules is not None
    }
    for event in events:
        if isinstance(event, AgentStarted):
            starts[event.node] = event.start
        elif isinstance(event, AgentEnded) and event.joules is not None:
            joules[event.node, starts.get(event.node, 0)] = event.joules  # the last report, which samples may lack
    return round(sum(joules.values()) / HOUR, 3) if joules else None


def _rank_seconds(events: list[Event], now: float | None) -> float:
    """Return the sum of the seconds that each rank ran. Each rank's time is measured by its own host's clock."""
    starts: dict[tuple[int, int], float] = {}
    total = 0.0
    for event in events:
        if isinstance(event, Started):
            starts |= {(event.attempt, rank): event.time for rank in range(*event.ranks)}
        elif isinstance(event, RankExit) and event.attempt is not None and (event.attempt, event.rank) in starts:
            total += max(0.0, event.time - starts.pop((event.attempt, event.rank)))
    newest = max((attempt for attempt, _ in starts), default=0)
    living = [begun for (attempt, _), begun in starts.items() if attempt == newest]
    return total + sum(max(0.0, (now or begun) - begun) for begun in living)
