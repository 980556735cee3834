"""Writes a sentence for each kind of event that has many fields. `orch events --json` prints all fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.cli.render.tables import counted
from orchestrator.outcome.ends import is_victim, was_stopped
from orchestrator.outcome.sentences import culprit_in_words, error_of
from orchestrator.protocol import events
from orchestrator.protocol.events import Event, read_event
from orchestrator.protocol.quantities import duration, size
from orchestrator.protocol.typed import Handlers

_SENTENCES: Final = Handlers(Event)


def sentence(line: Mapping[str, Any]) -> str:
    """Return the sentence for an event; empty if the kind of event has no sentence, or if the record of the event is
    damaged or from an old version.
    """
    event = read_event(line)
    write = _SENTENCES.get(type(event))
    return write(event) if write is not None else ""


@_SENTENCES.add
def _snapshot(event: events.Snapshot) -> str:
    commit = f"commit {event.git[:10]}{', with changes' if event.dirty else ''}" if event.git else "no git"
    return f"copied the code: {counted(event.files, 'file')}, {size(event.bytes)}, {commit}"


@_SENTENCES.add
def _agent_started(event: events.AgentStarted) -> str:
    if event.nproc is None or event.cores is None:
        return ""
    gpus = counted(event.gpus, "GPU") if event.gpus else "no GPU"
    has = ", ".join([counted(event.nproc, "rank"), counted(event.cores, "core"), gpus])
    return f"the agent runs on {event.host}, pid {event.pid}: {has}"


@_SENTENCES.add
def _joined(event: events.Joined) -> str:
    has = "" if event.nproc is None else f" with {counted(event.nproc, 'rank')}"
    return f"node {event.joined} ({event.host}) joined{has}"


@_SENTENCES.add
def _launcher_imported(event: events.LauncherImported) -> str:
    if event.seconds is None:
        return ""
    torch = f"torch {event.torch}" if event.torch else "no torch so far"
    return f"the launcher of attempt {event.attempt} is up after {duration(event.seconds)}, {torch}"


@_SENTENCES.add
def _launcher_started(event: events.LauncherStarted) -> str:
    return f"the launcher has started {counted(event.pids, 'rank')}"


@_SENTENCES.add
def _launcher_killed(event: events.LauncherKilled) -> str:
    return f"killed the launcher: {event.reason}"


@_SENTENCES.add
def _go(event: events.Go) -> str:
    offered = f"; orch offers the checkpoint {event.resume_from}" if event.resume_from else ""
    return f"attempt {event.attempt} of {counted(event.world_size, 'rank')} starts{offered}"


@_SENTENCES.add
def _started(event: events.Started) -> str:
    first, end = event.ranks
    ranks = f"rank {first}" if end == first + 1 else f"ranks {first}-{end - 1}"
    return f"started {ranks} of attempt {event.attempt}"


@_SENTENCES.add
def _rank_exit(event: events.RankExit) -> str:
    error = error_of(event)
    why = f": {error.type}: {error.message or ''}".splitlines()[0][:120] if error is not None and error.type else ""
    why += ", because another rank had failed" if is_victim(event) else ""
    return f"rank {event.rank} ended with {event.how}{why}{', as requested' if was_stopped(event) else ''}"


@_SENTENCES.add
def _attempt_failed(event: events.AttemptFailed) -> str:
    step = f" after step {event.step}" if event.step is not None and event.step != events.UNREPORTED else ""
    cause = event.cause.replace("_", " ")
    return f"attempt {event.attempt} failed{step} ({cause}): {culprit_in_words(event.culprit)}"


@_SENTENCES.add
def _gang_ended(event: events.GangEnded) -> str:
    return f"the run {event.outcome}{f': {event.reason}' if event.reason else ''}"


@_SENTENCES.add
def _agent_ended(event: events.AgentEnded) -> str:
    left = f"; could not end {counted(event.survivors, 'process')}" if event.survivors else ""
    swept = f"; ended {counted(event.swept, 'process')} left by the ranks" if event.swept else ""
    return f"the agent ended ({event.outcome}){swept}{left}"


@_SENTENCES.add
def _lost_node(event: events.LostNode) -> str:
    return f"node {event.lost} was lost: {event.reason}"


@_SENTENCES.add
def _stalled(event: events.Stalled) -> str:
    return f"rank {event.rank} has made no progress in {event.phase} for {event.seconds:.0f} s"


@_SENTENCES.add
def _stacks(event: events.Stacks) -> str:
    return f"recorded the stacks of {counted(event.ranks, 'rank')}: orch stacks and orch why"


@_SENTENCES.add
def _disk_full(event: events.DiskFull) -> str:
    return f"{event.path} can't be written"


@_SENTENCES.add
def _slept(event: events.Slept) -> str:
    return f"the agent did not run for {duration(event.seconds)}"


@_SENTENCES.add
def _outputs_left(event: events.OutputsLeft) -> str:
    count = f"{counted(event.files, 'file')} ({size(event.bytes)})" if event.files is not None else "files"
    return f"{count} are still in {event.host}:{event.folder}: {event.reason}"
