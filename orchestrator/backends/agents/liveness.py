"""Decides whether agents on other machines are alive, from the supervisor's last observation of each node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from orchestrator.backends.agents.handle import Handle, read_handle
from orchestrator.backends.settings import Host
from orchestrator.errors import StoreError
from orchestrator.outcome.restart import pending_start
from orchestrator.outcome.unreachable import counted_out
from orchestrator.outcome.verdict import Unreachable
from orchestrator.protocol.events import read_events
from orchestrator.runs.claims import here
from orchestrator.runs.state import HandleStatus
from orchestrator.runs.store import RunDir, read_lines


@dataclass(frozen=True)
class Seen:
    """The supervisor's last observation of an agent. It is valid only for one start on one machine."""

    start: int
    host: Host
    alive: bool | None  # None: unknown
    unreachable_since: float | None = None
    why: str = ""
    by: str = field(default_factory=here)  # the machine that made the observation

    def after(self, before: Seen | None) -> Seen:
        """Return this observation. If the machine was already unreachable in the earlier observation `before`, take
        over from it the time since which the machine is unreachable.
        """
        if before is None or (before.start, before.host) != (self.start, self.host):
            return self
        if self.unreachable_since is None:
            return self
        return replace(self, unreachable_since=before.unreachable_since or self.unreachable_since)

    def is_of(self, handle: Handle, node: int) -> bool:
        """Return True if the observation is about the node's agent that `handle.json` names, and not about an
        earlier agent.
        """
        return self.start == handle.start and handle.hosts[node : node + 1] == (self.host,)

    def write(self, run: RunDir, node: int) -> None:
        """Write the observation into the run's folder."""
        run.node(node).mkdir(parents=True, exist_ok=True)
        values = {"start": self.start, "machine": self.host.to_json(), "alive": self.alive}
        run.write(_name(node), {**values, "away": self.unreachable_since, "why": self.why, "by": self.by})


def last_seen(run: RunDir, node: int) -> Seen | None:
    """Return the last observation of a node's agent, whichever machine the node had then; None if there is no
    observation, or if its file is damaged.
    """
    try:
        data = run.read(_name(node))
        if data is None:
            return None
        since = data["away"] if isinstance(data["away"], float) else None
        host, by = Host.from_json(data["machine"]), str(data.get("by", ""))
        return Seen(data["start"], host, data["alive"], since, data["why"], by)
    except (StoreError, KeyError, TypeError):
        return None


def seen_now(run: RunDir, handle: Handle) -> dict[int, Seen]:
    """Return the last observation of each agent of the start that `handle` describes. Agents without an observation are
    left out.
    """
    found = {node: last_seen(run, node) for node in range(len(handle.hosts))}
    return {node: seen for node, seen in found.items() if seen is not None and seen.is_of(handle, node)}


def _name(node: int) -> str:
    return f"nodes/{node}/seen.json"


def unreachable_nodes(run: RunDir) -> dict[int, Unreachable]:
    """Return the nodes whose machines were unreachable at the last observation."""
    handle = read_handle(run)
    found = seen_now(run, handle) if handle is not None else {}
    return {
        node: Unreachable(seen.unreachable_since, seen.why)
        for node, seen in found.items()
        if seen.unreachable_since is not None
    }


def alive_agents(run: RunDir) -> Mapping[int, bool | None]:
    """Return, for each node, whether its agent lived at the last observation; None if that is unknown.

    The agent of an unreachable node counts as ended if the other nodes have ended or continued without it, or if the
    grace period of a cancel is over.
    """
    handle, decided = read_handle(run), pending_start(read_events(read_lines(run.path / "events.jsonl")))
    if handle is None or (decided is not None and decided.start > handle.start):
        return {}  # the records are about the agents of the previous start
    seen = seen_now(run, handle)
    found: dict[int, bool | None] = {}
    for node in range(len(handle.hosts)):
        if node in seen:
            found[node] = seen[node].alive
        elif node in handle.agents or handle.state == HandleStatus.SUBMITTED:
            found[node] = None
    unknown = [node for node, alive in found.items() if alive is None]
    if unknown:
        since = {node: at for node in unknown if node in seen and (at := seen[node].unreachable_since) is not None}
        gone = counted_out(
            since, len(found), run.events(), marked=_marked_attempt(run), grace=run.record().grace, now=time.time()
        )
        found.update(dict.fromkeys(gone, False))
    return found


def _marked_attempt(run: RunDir) -> object:
    """Return the number of the attempt that rank 0 has recorded in the file rank0.done; None if the file is missing or
    can't be read.
    """
    try:
        marker = run.read("rank0.done")
    except StoreError:
        return None
    return marker.get("attempt") if marker is not None else None
