"""Combines the reports of shared hosts: which runs hold which places (GPUs or slots), and in which order runs wait."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.protocol.hostlist import in_words
from orchestrator.protocol.places.tickets import HostQueue, Ticket, before, in_order

Answer = Mapping[str, Any]  # the answer of a host's server to look_at_queue


@dataclass
class SharedRun:
    """A run of any user that holds, or waits for, places (GPUs or slots) of the hosts. The kernel reports the user; the
    other facts come from that user's own record.
    """

    user: str
    run: str  # empty if its user reports no run id
    waits: bool
    hosts: dict[str, int] = field(default_factory=dict)  # number of places that it holds or needs on each host
    since: float | None = None
    position: int | None = None  # position in the queue; None for a run that runs or is skipped

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON types."""
        state = "running" if not self.waits else "waiting" if self.position else "passed over"
        return {"user": self.user, "run": self.run or None, "state": state, "position": self.position,
                "hosts": self.hosts, "since": self.since}  # fmt: skip


def host_queue(answer: Answer, run: str) -> HostQueue:
    """Return the queue of a host from one run's point of view. Places that the run's own agent holds count as free."""
    places, uid = answer["places"], answer["uid"]
    theirs = [each for each in places.values() if each and (each["uid"], each["run"]) != (uid, run)]
    return HostQueue(len(places), len(places) - len(theirs), tuple(map(_ticket, answer["tickets"])), uid)


def _ticket(data: Answer) -> Ticket:
    return Ticket(**{name: data[name] for name in Ticket._fields})


def runs_on(hosts: Mapping[str, Answer]) -> list[SharedRun]:
    """Return the runs that hold places of these hosts. The waiting runs follow, in the order of the queue."""
    running: dict[tuple[str, str], SharedRun] = {}
    waiting: dict[tuple[str, str], SharedRun] = {}
    counted: dict[tuple[str, str], tuple[int, str, int]] = {}
    for name, answer in hosts.items():
        for holder in filter(None, answer["places"].values()):
            user, run = _user(holder), holder["run"] or holder.get("program") or ""
            each = running.setdefault((user, run), SharedRun(user, run, waits=False, since=holder["since"]))
            each.hosts[name] = each.hosts.get(name, 0) + 1
        users = {ticket["uid"]: _user(ticket) for ticket in answer["tickets"]}
        known = [_ticket(each) for each in answer["tickets"]]
        for ticket in known:
            key = users[ticket.uid], ticket.run
            waiting.setdefault(key, SharedRun(*key, waits=True, since=ticket.number / 1e9)).hosts[name] = ticket.needs
        for ticket in in_order(known, len(answer["places"])):
            key = users[ticket.uid], ticket.run
            counted[key] = max(ticket.order, counted.get(key, ticket.order))
    for number, key in enumerate(sorted(counted, key=lambda each: counted[each]), 1):
        waiting[key].position = number
    in_line = sorted(waiting.values(), key=lambda each: (each.position is None, each.position or 0, each.since or 0))
    return [*sorted(running.values(), key=lambda each: each.since or 0), *in_line]


def _user(data: Answer) -> str:
    return data["user"] or ("?" if data["uid"] is None else f"uid {data['uid']}")


def queue_record(run: str, hosts: Mapping[str, Answer]) -> dict[str, Any]:
    """Return the queue record of a run that waits for these hosts: its position, the runs before it, and the runs that
    hold the places (GPUs or slots).
    """
    ahead = {(each.uid, each.run) for answer in hosts.values() for each in before(host_queue(answer, run), run)}
    shown, named = runs_on(hosts), _named(ahead, hosts)
    first = [each for each in shown if each.position and (each.user, each.run) in named]
    holders = [each for each in shown if not each.waits]
    return {
        "position": len(first) + 1,
        "before": [each.to_json() for each in first],
        "held_by": [each.to_json() for each in holders],
        "why": _why(len(first) + 1, first, holders),
    }


def _named(ahead: Iterable[tuple[int, str]], hosts: Mapping[str, Answer]) -> set[tuple[str, str]]:
    users = {each["uid"]: _user(each) for answer in hosts.values() for each in answer["tickets"]}
    return {(users[uid], run) for uid, run in ahead}


def _why(position: int, first: list[SharedRun], holders: list[SharedRun]) -> str:
    after = f", after {', '.join(f'{each.user} ({each.run})' for each in first)}" if first else ""
    held = "; ".join(_holds(each) for each in holders) or "nobody holds a place"
    return f"number {position} in the queue{after}: {held}"


def _holds(each: SharedRun) -> str:
    since = f" since {time.strftime('%Y-%m-%d %H:%M', time.localtime(each.since))}" if each.since else ""
    places = sum(each.hosts.values())
    what = f"{places} place{'s' * (places != 1)} of {in_words(each.hosts)}"
    return f"{each.user} ({each.run or 'who names no run'}) holds {what}{since}"
