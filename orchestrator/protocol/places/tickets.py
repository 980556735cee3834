"""Who may start on hosts that several users share: first come, first served, by tickets. Pure. Python 3.9.

A run that waits has a ticket on each of its hosts, all with one number: the time at which it was drawn. The numbers
order all runs in the same way everywhere, so of several that need the same hosts the first can't be held up by a later
one. A run starts when each of its hosts has room for it besides all that is asked for by the tickets before it; nothing
is held meanwhile. Of a ticket the owner, the moment at which it was made and the last renewal are the kernel's word;
the rest is what its owner says.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

FRESH_SECONDS = 60.0  # a ticket that was not renewed for so long is passed over, and counts again when it is
RENEW_SECONDS = 10.0  # its owner renews it this often
MOST_OF_USER = 16  # so many tickets of one user count on a host: the first ones
EARLIER_SECONDS = 10  # by no more than that a number is believed to be before the ticket was made
_NANO = 10**9


class Ticket(NamedTuple):
    """A run that waits for places of one host."""

    uid: int
    run: str
    needs: int  # how many places of the host
    number: int  # nanoseconds since the epoch: when it was drawn, by its owner's word
    made: int  # when it was laid there, by the kernel's word
    age: float  # seconds since it was renewed

    @property
    def is_fresh(self) -> bool:
        """Tell whether its owner still waits; one of the future was renewed while the clock was wrong."""
        return -FRESH_SECONDS <= self.age <= FRESH_SECONDS

    @property
    def is_early(self) -> bool:
        """Tell whether it claims to be older than it can be."""
        return self.number < self.made - EARLIER_SECONDS * _NANO

    @property
    def order(self) -> tuple[int, str, int]:
        """Return what tickets are ordered by."""
        return max(self.number, self.made - EARLIER_SECONDS * _NANO), self.run, self.uid


class HostQueue(NamedTuple):
    """One host as a run that may want to start there sees it."""

    total: int  # how many places it has
    free: int
    tickets: tuple[Ticket, ...]
    uid: int  # the run's user there


def in_order(tickets: Iterable[Ticket], total: int) -> list[Ticket]:
    """Return the tickets that count, the first one first: renewed, no more than the host has, not too many a user."""
    found: list[Ticket] = []
    of_user: dict[int, int] = {}
    for ticket in sorted(tickets, key=lambda each: each.order):
        if ticket.is_fresh and 0 < ticket.needs <= total and of_user.get(ticket.uid, 0) < MOST_OF_USER:
            of_user[ticket.uid] = of_user.get(ticket.uid, 0) + 1
            found.append(ticket)
    return found


def own(queue: HostQueue, run: str) -> list[Ticket]:
    """Return the run's own ticket on a host; a list, for there may be none."""
    return [each for each in queue.tickets if each.uid == queue.uid and each.run == run][:1]


def before(queue: HostQueue, run: str) -> list[Ticket]:
    """Return the tickets that count and are before the run's; all of them where it has none yet."""
    mine = own(queue, run)
    return [each for each in in_order(queue.tickets, queue.total) if not mine or each.order < mine[0].order]


def has_room(queue: HostQueue, run: str, count: int) -> bool:
    """Tell whether so many places are free for the run, besides all that those before it ask for."""
    return queue.free - sum(each.needs for each in before(queue, run)) >= count


def may_start(asked: Iterable[tuple[HostQueue, int]], run: str) -> bool:
    """Tell whether the run's turn has come: on each of its hosts there is room for what it needs there."""
    return all(has_room(queue, run, count) for queue, count in asked)
