"""How a run ended and who is to blame: pure rules over its events, each with the sentence that people read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.hints import hint_for
from orchestrator.records import FINAL, Event, NodeState, Verdict, how_it_ended
from orchestrator.starts import WITHOUT


def verdict_of(
    run: Event,
    own: list[Event],
    by_node: Mapping[int, list[Event]],
    nodes: tuple[NodeState, ...],
    alive: set[int],
    rank0_done: bool,
) -> Verdict | None:
    """The verdict once no agent is left that could change it, else None."""
    survivors = tuple(pid for event in _all(by_node, "agent_ended") for pid in items(event.get("survivors")))
    ended = [event for event in by_node[0] if event["kind"] == "gang_ended"]
    refused = [event for event in own if event["kind"] == "submit_failed"]
    if refused:
        return Verdict("failed", "infra", refused[-1]["reason"])
    if dropped := [event for event in own if event["kind"] == "dropped"]:
        return Verdict("cancelled", reason=dropped[-1]["reason"])
    if any(node.state in ("starting", "running") or (node.state == "waiting" and node.node in alive) for node in nodes):
        return None  # an agent that lives, or may live, has not said its last word: perhaps nobody has heard its first
    started = any(node.state != "waiting" for node in nodes)
    gone = any(event["kind"] == "found_lost" for event in own)
    if not started and not gone:
        return None
    cancelled = any(event["kind"] == "cancel" for event in own)
    if ended:
        verdict = _of_gang(ended[-1], by_node, nodes, rank0_done, survivors)
        return replace(verdict, reason="; ".join(filter(None, [verdict.reason, without(own, len(by_node))])))
    if cancelled:
        return Verdict("cancelled", survivors=survivors)
    given_up = _all(by_node, "gave_up")
    if given_up and not any(node.state == "lost" for node in nodes):
        first = given_up[0]
        outcome = first["outcome"] if first["outcome"] in FINAL else "failed"
        return Verdict(outcome, first["cause"], first["reason"] or f"{first['cause']} before the ranks were started")
    words = [_who_was_lost(nodes, own), *(event["reason"] for event in given_up[:1])]
    return Verdict("failed", "infra", "; ".join(word for word in words if word), survivors=survivors)


def _of_gang(
    end: Event,
    by_node: Mapping[int, list[Event]],
    nodes: tuple[NodeState, ...],
    rank0_done: bool,
    survivors: tuple[int, ...],
) -> Verdict:
    outcome, attempt = end["outcome"], end["attempt"]
    if outcome == "succeeded":
        missing = [node for node in nodes if not _said(by_node[node.node], "succeeded")]
        if missing:
            names = ", ".join(f"node {node.node} ({node.host})" for node in missing)
            return Verdict("failed", "infra", f"all ranks ended well, but {names} never said so", attempt)
        if not rank0_done:
            return Verdict("failed", "infra", "all nodes said done, but rank 0 left no done marker", attempt)
        return Verdict("succeeded", attempt=attempt, survivors=survivors)
    if outcome == "cancelled":
        return Verdict("cancelled", attempt=attempt, survivors=survivors)
    failures = [event for event in by_node[0] if event["kind"] == "attempt_failed" and event["attempt"] == attempt]
    if outcome == "failed" and failures and end["cause"] in (failures[-1]["cause"], "no_progress", "no_retry"):
        return _blame(failures[-1]["culprit"], end, survivors)
    reason = end["reason"] or {
        "preempted": "the scheduler or somebody else asked it to stop; it can be resumed from its checkpoint",
        "timeout": "its time limit was reached; it can be resumed from its checkpoint",
    }.get(outcome, f"it {outcome}, and what was recorded of why can't be read")
    return Verdict("failed", end["cause"], reason, attempt, hint=hint_for(reason, None, None), survivors=survivors)


def _blame(culprit: Event, end: Event, survivors: tuple[int, ...]) -> Verdict:
    error, tail = culprit.get("error"), tuple(str(line) for line in items(culprit.get("tail")))
    error = error if isinstance(error, dict) and error else None
    words = " ".join([str(error.get("type")), str(error.get("message"))] if error else tail[-5:])
    how = how_it_ended(culprit.get("code"), culprit.get("signal"))
    if culprit.get("oom"):
        how = "SIGKILL, from the kernel: its cgroup ran out of memory"
    what = f"{error['type']}: {error.get('message')}".splitlines()[0][:200] if error and error.get("type") else how
    rank, node, host = culprit.get("rank"), culprit.get("node"), str(culprit.get("host", "?"))
    reason = f"rank {rank} on node {node} ({host}) ended with {how}"
    if what != how:
        reason += f": {what}"
    if culprit.get("hang"):
        reason = f"{(error or {}).get('message', 'a rank stood still')} on node {node} ({host})"
    if end["reason"]:
        reason += f"; {end['reason']}"
    return Verdict(
        "failed",
        end["cause"],
        reason,
        end["attempt"],
        rank=rank,
        node=node,
        host=host,
        code=culprit.get("code"),
        signal=culprit.get("signal"),
        error=error,
        tail=tail,
        hint=hint_for("MemoryError" if culprit.get("oom") else words, culprit.get("code"), culprit.get("signal")),
        survivors=survivors,
    )


def _who_was_lost(nodes: tuple[NodeState, ...], own: list[Event]) -> str:
    reasons = [str(event.get("reason", "")) for event in own if event["kind"] == "found_lost"]
    lost = [f"node {node.node} ({node.host})" for node in nodes if node.state == "lost"]
    if lost and not reasons:
        return f"the agent of {', '.join(lost)} vanished without a word: killed, or its machine went down"
    if not reasons and any(node.state == "ended" for node in nodes):
        return "the agents ended, but the record of how the gang ended is lost"
    return (reasons or [""])[-1] or "no agent ever reported"


def without(own: Iterable[Event], nodes: int) -> str:
    """Which nodes this start of so many had to do without; empty where it has all of the plan's."""
    said = [event for event in own if event["kind"] == WITHOUT]
    if not said or said[-1].get("nodes") != nodes:  # they were back before it could be done
        return ""
    names = ", ".join(map(str, items(said[-1].get("hosts"))))
    return f"on {said[-1].get('nodes')} of {said[-1].get('of')} nodes, without {names}"


def items(value: Any) -> list[Any]:
    """The value where it is a list; empty for what has been damaged."""
    return list(value) if isinstance(value, list | tuple) else []


def _said(events: list[Event], outcome: str) -> bool:
    return any(event["kind"] == "agent_ended" and event["outcome"] == outcome for event in events)


def _all(by_node: Mapping[int, list[Event]], kind: str) -> list[Event]:
    return [event for events in by_node.values() for event in events if event["kind"] == kind]
