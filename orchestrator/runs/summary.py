"""Summarizes a run: resolved documents, versions, code, phases, exit codes, hours. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from orchestrator.outcome.verdict import Event, how_it_ended
from orchestrator.protocol.events import EventKind, Started, read_events
from orchestrator.runs.record import RunRecord

if TYPE_CHECKING:  # a submit needs only one line of this
    from orchestrator.runs.files.samples import NodeSamples

HOUR: Final = 3600.0


def run_record(
    run: RunRecord,
    events: Iterable[Event],
    plan: Mapping[str, Any] | None = None,
    metrics: Iterable[Event] = (),
    now: float | None = None,
    samples: Iterable[NodeSamples] = (),
) -> dict[str, Any]:
    """Return the whole record as JSON types. `now` is the end of everything that has not ended yet.

    Durations within the gang come from node 0's monotonic clock. Only `queued` compares two hosts' clocks.
    """
    events = [*read_events(events)]
    nodes = _nodes(events)
    return {
        "job": run.job,
        "profile": run.profile,
        "job_file": run.job_file,
        "profile_file": run.profile_file,
        "repeats": run.repeats,
        "plan": plan,
        "hosts": [str(node.get("host", "?")) for node in nodes.values()],
        "versions": _versions(run, events, nodes),
        "code": code_of(events),
        "phases": _phases(run, events, metrics),
        "attempts": _attempts(events),
        "hours": hours_of(events, now, samples),
    }


def hours_of(
    events: Iterable[Event], now: float | None = None, samples: Iterable[NodeSamples] = ()
) -> dict[str, float | None]:
    """Return the hours of ranks, cores and GPUs that the run used, and the GPUs' watt-hours."""
    events = [*read_events(events)]
    return {**_hours(events, _nodes(events), now), "gpu_watt_hours": _watt_hours(events, samples)}


def code_of(events: Iterable[Event]) -> dict[str, Any] | None:
    """Return the facts about the snapshot: files, bytes, sha256, and the state in git."""
    for event in events:
        if event.get("kind") == EventKind.SNAPSHOT:
            return {key: value for key, value in event.items() if key not in ("kind", "time")}
    return None


def code_note(events: Iterable[Event]) -> str:
    """Return a note if the code that was sent is not in a commit; empty otherwise."""
    code = code_of(events)
    if not code or not code.get("dirty"):
        return ""
    parts = ["uncommitted changes"] if code.get("diff") else []
    if untracked := code.get("untracked"):
        parts.append(f"{len(untracked)} untracked file{'s' * (len(untracked) != 1)}")
    commit = str(code.get("git") or "")[:9]
    what = f"is commit {commit} with {' and '.join(parts) or 'changes'}" if commit else "has no git commit"
    return f"note: the code folder {what}; a snapshot of it is stored with the run"


def left_out_note(events: Iterable[Event]) -> str:
    """Return a note if an ignore file kept files of the code folder from the run; empty otherwise.

    For a run on this machine, the note lists checkpoints that are links to the user's own files.
    """
    code = code_of(events) or {}
    if "left_out" in code:
        from orchestrator.runs.files.ignore_rules import left_out_words

        return left_out_words(code["left_out"])
    if "linked" in code:
        from orchestrator.runs.files.laid_files import words_on_links

        return words_on_links(code["linked"])
    return ""


def _nodes(events: list[Event]) -> dict[int, Event]:
    """Return the last AGENT_STARTED event of each node."""
    found = {event["node"]: event for event in events if event["kind"] == EventKind.AGENT_STARTED and _is_node(event)}
    return dict(sorted(found.items()))


def _is_node(event: Event) -> bool:
    return type(event.get("node")) is int


def _versions(run: RunRecord, events: list[Event], nodes: Mapping[int, Event]) -> dict[str, Any]:
    torch = {
        event["node"]: event.get("torch")
        for event in events
        if event["kind"] == EventKind.LAUNCHER_IMPORTED and _is_node(event)
    }
    return {
        "orch": run.orch,
        "python": run.python,
        "nodes": [
            {"node": node, "host": event.get("host"), "python": event.get("python"), "torch": torch.get(node)}
            for node, event in nodes.items()
        ],
    }


# -- phases


def _phases(run: RunRecord, events: list[Event], metrics: Iterable[Event]) -> list[dict[str, Any]]:
    """Return (name, attempt, seconds) of a run's phases, in order. Phases that did not occur are left out."""
    own = [event for event in events if "node" not in event]
    first = [event for event in events if event.get("node") == 0]
    phases: list[dict[str, Any]] = []

    def add(name: str, seconds: float | None, attempt: int = 0) -> None:
        if seconds is not None:
            phases.append({"phase": name, "attempt": attempt, "seconds": round(max(0.0, seconds), 3)})

    submitted = _time(_first(own, EventKind.SUBMITTED), "time")
    add("submitting", _between(run.created or None, submitted))
    add("queued", _between(submitted, _time(_first(first, EventKind.AGENT_STARTED), "time")))
    up, joined = _time(_first(first, EventKind.AGENT_STARTED)), _time(_last(first, EventKind.JOINED))
    add("joining", _between(up, joined))
    imports = [event for event in events if event["kind"] == EventKind.LAUNCHER_IMPORTED]
    add("importing", max((_number(event.get("seconds")) or 0.0 for event in imports), default=None))
    saves = _seconds_by_attempt(metrics, "save")
    evaluations = _seconds_by_attempt(metrics, "eval")
    before = joined
    for go in (event for event in first if event["kind"] == EventKind.GO):
        attempt = _attempt_of(go)
        add("starting", _between(before, _time(go)), attempt)
        end = _end_of(first, attempt)
        add("running", _between(_time(go), end), attempt)
        add("saving", saves.get(attempt), attempt)
        add("evaluating", evaluations.get(attempt), attempt)
        before = end
    add("ending", _between(before, _time(_last(first, EventKind.AGENT_ENDED))), phases[-1]["attempt"] if phases else 0)
    return phases


def _end_of(first: list[Event], attempt: int) -> float | None:
    ends = [
        e
        for e in first
        if e["kind"] in (EventKind.GANG_ENDED, EventKind.ATTEMPT_FAILED) and e.get("attempt") == attempt
    ]
    return _time(ends[0]) if ends else None


def _seconds_by_attempt(metrics: Iterable[Event], kind: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for event in metrics:
        seconds = _number(event.get("seconds"))
        if event.get("kind") == kind and seconds is not None:
            number = _attempt_of(event)
            found[number] = found.get(number, 0.0) + seconds
    return found


def _attempt_of(event: Event) -> int:
    attempt = event.get("attempt")
    return attempt if type(attempt) is int else 0


def _first(events: list[Event], kind: str) -> Event | None:
    return next((event for event in events if event["kind"] == kind), None)


def _last(events: list[Event], kind: str) -> Event | None:
    return next((event for event in reversed(events) if event["kind"] == kind), None)


def _time(event: Event | None, clock: str = "mono") -> float | None:
    return None if event is None else _number(event.get(clock))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _between(start: Any, end: float | None) -> float | None:
    begun = _number(start)
    return None if begun is None or end is None else end - begun


# -- ends and use


def _attempts(events: list[Event]) -> list[dict[str, Any]]:
    """Return for each attempt how every rank ended."""
    ends: dict[int, dict[str, Any]] = {}
    for event in events:
        attempt, rank = event.get("attempt"), event.get("rank")
        if event["kind"] == EventKind.RANK_EXIT and type(attempt) is int and type(rank) is int:
            end = {"code": event.get("code"), "signal": event.get("signal")}
            ends.setdefault(attempt, {})[str(rank)] = {**end, "how": how_it_ended(end["code"], end["signal"])}
    return [
        {"attempt": attempt, "exits": dict(sorted(exits.items(), key=lambda item: int(item[0])))}
        for attempt, exits in sorted(ends.items())
    ]


def _hours(events: list[Event], nodes: Mapping[int, Event], now: float | None) -> dict[str, float]:
    """Return the hours of ranks, and of the hosts' cores and GPUs while agents ran, each host counted once."""
    spans: dict[str, tuple[float, float, float, float]] = {}
    named: dict[str, set[str]] = {}  # nodes on one host may have different GPUs
    last_words = (EventKind.AGENT_ENDED, EventKind.GAVE_UP)
    ends = {event["node"]: event for event in events if event["kind"] in last_words and _is_node(event)}
    for node, event in nodes.items():
        begun, ended = _number(event.get("time")), _time(ends[node], "time") if node in ends else now
        if begun is None or ended is None:
            continue
        host = str(event.get("host", node))
        first, last, cores, gpus = spans.get(host, (begun, ended, 0.0, 0.0))
        names = event.get("gpu_names")
        named.setdefault(host, set()).update(map(str, names) if isinstance(names, list | tuple) else ())
        cores = max(cores, _number(event.get("cores")) or 0)
        gpus = max(gpus, _number(event.get("gpus")) or 0, len(named[host]))
        spans[host] = (min(first, begun), max(last, ended), cores, gpus)
    held = [(max(0.0, last - first), cores, gpus) for first, last, cores, gpus in spans.values()]
    return {
        "rank_hours": round(_rank_seconds(events, now) / HOUR, 6),
        "cpu_hours": round(sum(seconds * cores for seconds, cores, _ in held) / HOUR, 6),
        "gpu_hours": round(sum(seconds * gpus for seconds, _, gpus in held) / HOUR, 6),
    }


def gpus_of(events: Iterable[Event]) -> int:
    """Return how many GPUs the run's hosts have given it, each host counted once."""
    by_host: dict[str, int] = {}
    for event in events:
        if event.get("kind") == EventKind.AGENT_STARTED and (count := _number(event.get("gpus"))):
            host = str(event.get("host", event.get("node")))
            by_host[host] = max(by_host.get(host, 0), int(count))
    return sum(by_host.values())


def _watt_hours(events: list[Event], samples: Iterable[NodeSamples]) -> float | None:
    """Return the energy of the GPUs while agents ran on their nodes, or None if no GPU reports it."""
    starts: dict[str, str] = {}  # texts, because a damaged value may be anything
    joules: dict[tuple[str, str], float] = {
        (str(node.node), str(sample.start)): sample.joules
        for node in samples
        for sample in node.samples
        if sample.joules is not None
    }
    for event in events:
        node = str(event.get("node"))
        if event["kind"] == EventKind.AGENT_STARTED:
            starts[node] = str(event.get("start", 0))
        elif event["kind"] == EventKind.AGENT_ENDED and (told := _number(event.get("joules"))) is not None:
            joules[node, starts.get(node, "0")] = told  # the agent's last report, which the samples may lack
    return round(sum(joules.values()) / HOUR, 3) if joules else None


def _rank_seconds(events: list[Event], now: float | None) -> float:
    """Return the sum of all ranks' times from start to end, each by its own host's clock."""
    starts: dict[tuple[int, int], float] = {}
    total = 0.0
    for event in events:
        moment, attempt = _number(event.get("time")), event.get("attempt")
        if moment is None or type(attempt) is not int:
            continue
        rank = event.get("rank")
        if isinstance(event, Started):
            starts |= {(attempt, each): moment for each in range(*event.ranks)}
        elif event["kind"] == EventKind.RANK_EXIT and type(rank) is int and (attempt, rank) in starts:
            total += max(0.0, moment - starts.pop((attempt, rank)))
    newest = max((attempt for attempt, _ in starts), default=0)
    living = [begun for (attempt, _), begun in starts.items() if attempt == newest]
    return total + sum(max(0.0, (now or begun) - begun) for begun in living)
