"""Writes a sentence for each kind of event with many fields. `orch events --json` prints all fields. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from orchestrator.cli.render.tables import counted
from orchestrator.outcome.sentences import culprit_in_words
from orchestrator.outcome.verdict import how_it_ended
from orchestrator.protocol.events import EventKind
from orchestrator.protocol.quantities import duration, size

Event = Mapping[str, Any]


def sentence(event: Event) -> str:
    """Return the sentence for an event; empty if its kind has no sentence or the event lacks a field."""
    write = _SENTENCES.get(event["kind"])
    if write is None:
        return ""
    try:
        return write(event)
    # the record is damaged or older
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
        return ""


def _snapshot(event: Event) -> str:
    commit = f"commit {event['git'][:10]}{', with changes' if event['dirty'] else ''}" if event["git"] else "no git"
    return f"copied the code: {counted(event['files'], 'file')}, {size(event['bytes'])}, {commit}"


def _agent_started(event: Event) -> str:
    gpus = counted(event["gpus"], "GPU") if event["gpus"] else "no GPU"
    has = ", ".join([counted(event["nproc"], "rank"), counted(event["cores"], "core"), gpus])
    return f"the agent runs on {event['host']}, pid {event['pid']}: {has}"


def _launcher_imported(event: Event) -> str:
    torch = f"torch {event['torch']}" if event["torch"] else "no torch so far"
    return f"the launcher of attempt {event['attempt']} is up after {duration(event['seconds'])}, {torch}"


def _go(event: Event) -> str:
    offered = f"; orch offers the checkpoint {event['resume_from']}" if event.get("resume_from") else ""
    return f"attempt {event['attempt']} of {counted(event['world_size'], 'rank')} starts{offered}"


def _started(event: Event) -> str:
    first, end = event["ranks"]
    ranks = f"rank {first}" if end == first + 1 else f"ranks {first}-{end - 1}"
    return f"started {ranks} of attempt {event['attempt']}"


def _rank_exit(event: Event) -> str:
    error = event.get("error") or {}
    why = f": {error['type']}: {error.get('message', '')}".splitlines()[0][:120] if error.get("type") else ""
    victim = ", because another rank had failed" if event.get("victim") else ""
    asked = ", as it was asked to" if event.get("stopped") else ""
    how = how_it_ended(event["code"], event["signal"])
    return f"rank {event['rank']} ended with {how}{why}{victim}{asked}"


def _attempt_failed(event: Event) -> str:
    step = f" after step {event['step']}" if event.get("step") is not None else ""
    culprit = f": {culprit_in_words(event['culprit'])}" if event.get("culprit") else ""
    return f"attempt {event['attempt']} failed{step} ({str(event['cause']).replace('_', ' ')}){culprit}"


def _gang_ended(event: Event) -> str:
    why = f": {event['reason']}" if event.get("reason") else ""
    return f"the run {event['outcome']}{why}"


def _agent_ended(event: Event) -> str:
    left = f"; could not end {counted(event['survivors'], 'process')}" if event["survivors"] else ""
    swept = f"; ended {counted(event['swept'], 'process')} left by the ranks" if event["swept"] else ""
    return f"the agent ended ({event['outcome']}){swept}{left}"


def _lost_node(event: Event) -> str:
    return f"node {event['lost']} was lost: {event['reason']}"


def _outputs_left(event: Event) -> str:
    count = f"{counted(event['files'], 'file')} ({size(event['bytes'])})" if event.get("files") is not None else "files"
    return f"{count} are still in {event['host']}:{event['folder']}: {event['reason']}"


_SENTENCES: Final[dict[str, Callable[[Event], str]]] = {
    EventKind.SNAPSHOT: _snapshot,
    EventKind.AGENT_STARTED: _agent_started,
    EventKind.JOINED: lambda event: (
        f"node {event['joined']} ({event['host']}) joined with {counted(event['nproc'], 'rank')}"
    ),
    EventKind.LAUNCHER_IMPORTED: _launcher_imported,
    EventKind.LAUNCHER_STARTED: lambda event: f"the launcher has started {counted(event['pids'], 'rank')}",
    EventKind.LAUNCHER_KILLED: lambda event: f"killed the launcher: {event['reason']}",
    EventKind.GO: _go,
    EventKind.STARTED: _started,
    EventKind.RANK_EXIT: _rank_exit,
    EventKind.ATTEMPT_FAILED: _attempt_failed,
    EventKind.GANG_ENDED: _gang_ended,
    EventKind.AGENT_ENDED: _agent_ended,
    EventKind.LOST_NODE: _lost_node,
    EventKind.STALL: lambda event: (
        f"rank {event['rank']} has made no progress in {event['phase']} for {event['seconds']:.0f} s"
    ),
    EventKind.STACKS: lambda event: (
        f"recorded the stacks of {counted(event['ranks'], 'rank')}: orch stacks and orch why"
    ),
    EventKind.DISK_FULL: lambda event: f"{event['path']} can't be written",
    EventKind.SLEPT: lambda event: f"the agent did not run for {duration(event['seconds'])}",
    EventKind.OUTPUTS_LEFT: _outputs_left,
}
