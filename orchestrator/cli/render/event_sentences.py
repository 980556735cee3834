"""Writes a sentence for each kind of event with many fields. `orch events --json` prints all fields. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from orchestrator.cli.render.tables import size
from orchestrator.protocol.events import EventKind
from orchestrator.runs.state import how_it_ended
from orchestrator.runs.verdict import culprit_in_words

Event = Mapping[str, Any]


def sentence(event: Event) -> str:
    """Return the sentence of an event; empty for a kind without a sentence, and for an event that lacks a field."""
    write = _SENTENCES.get(event["kind"])
    if write is None:
        return ""
    try:
        return write(event)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):  # an older or damaged record
        return ""


def _snapshot(event: Event) -> str:
    commit = f"commit {event['git'][:10]}{', with changes' if event['dirty'] else ''}" if event["git"] else "no git"
    return f"copied the code: {event['files']} files, {size(event['bytes'])}, {commit}"


def _agent_started(event: Event) -> str:
    gpus = f"{event['gpus']} GPUs" if event["gpus"] else "no GPU"
    return (
        f"the agent runs on {event['host']}, pid {event['pid']}: {event['nproc']} ranks, {event['cores']} cores, {gpus}"
    )


def _launcher_imported(event: Event) -> str:
    torch = f"torch {event['torch']}" if event["torch"] else "no torch so far"
    return f"the launcher of attempt {event['attempt']} is up after {event['seconds']:.1f} s, {torch}"


def _go(event: Event) -> str:
    offered = f"; orch offers the checkpoint {event['resume_from']}" if event.get("resume_from") else ""
    return f"attempt {event['attempt']} of {event['world_size']} ranks starts{offered}"


def _started(event: Event) -> str:
    first, count = event["ranks"]
    return f"started {_ranks(first, count)} of attempt {event['attempt']}"


def _ranks(first: int, count: int) -> str:
    return f"rank {first}" if count == 1 else f"ranks {first}-{first + count - 1}"


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
    left = f"; {len(event['survivors'])} processes could not be ended" if event["survivors"] else ""
    swept = f"; ended {event['swept']} processes that were left" if event["swept"] else ""
    return f"the agent ended ({event['outcome']}){swept}{left}"


def _lost_node(event: Event) -> str:
    return f"node {event['lost']} was lost: {event['reason']}"


def _outputs_left(event: Event) -> str:
    count = f"{event['files']} files ({size(event['bytes'])})" if event.get("files") is not None else "files"
    return f"{count} are still in {event['host']}:{event['folder']}: {event['reason']}"


_SENTENCES: Final[dict[str, Callable[[Event], str]]] = {
    EventKind.SNAPSHOT: _snapshot,
    EventKind.AGENT_STARTED: _agent_started,
    EventKind.JOINED: lambda event: f"node {event['joined']} ({event['host']}) joined with {event['nproc']} ranks",
    EventKind.LAUNCHER_IMPORTED: _launcher_imported,
    EventKind.LAUNCHER_STARTED: lambda event: f"the launcher has started {len(event['pids'])} ranks",
    EventKind.LAUNCHER_KILLED: lambda event: (
        f"killed the launcher of attempt {event['attempt']}: its ranks did not end"
    ),
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
    EventKind.STACKS: lambda event: f"recorded the stacks of {len(event['stacks'])} ranks: orch stacks and orch why",
    EventKind.DISK_FULL: lambda event: f"{event['path']} can't be written",
    EventKind.SLEPT: lambda event: f"the agent did not run for {event['seconds']:.1f} s",
    EventKind.OUTPUTS_LEFT: _outputs_left,
}
