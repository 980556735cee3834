"""Decides which run may start next on hosts that several users share: first come, first served, by tickets.

A waiting run draws a number, which is the current time, and leaves a ticket with this number on each of its hosts. So
all hosts have the runs in the same order, and a later run can't delay a run that needs several hosts. A run starts when
each of its hosts has room for it in addition to the places that earlier tickets need. A waiting run holds no places.
The owner, creation time and last renewal of a ticket come from the kernel; trust only those three.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

FRESH_SECONDS = 60.0  # a ticket that was not renewed for this long is skipped until it is renewed
RENEW_SECONDS = 10.0  # seconds between two renewals of a ticket
MOST_OF_USER = 16  # how many tickets of one user count on a host; the user's later tickets are skipped
EARLIER_SECONDS = 10  # seconds by which the ticket's number may precede its creation
_NANO = 10**9


class Ticket(NamedTuple):
    """A run's request for places on one host, which waits for its turn."""

    uid: int
    run: str
    needs: int  # number of places on the host
    number: int  # the drawing time that the owner claims, in ns since the epoch
    made: int  # the creation time that the kernel reports, in ns since the epoch
    age: float  # seconds since the last renewal

    @property
    def is_fresh(self) -> bool:
        """Return whether the ticket was renewed recently, so that its owner still waits. A renewal time in the
        future counts as not recent, because the clock was wrong.
        """
        return -FRESH_SECONDS <= self.age <= FRESH_SECONDS

    @property
    def is_early(self) -> bool:
        """Return whether the owner claims to have drawn the number too long before the ticket was created."""
        return self.number < self.made - EARLIER_SECONDS * _NANO

    @property
    def order(self) -> tuple[int, str, int]:
        """Return the sort key of tickets: the time of drawing, which counts as at most EARLIER_SECONDS before the
        creation.
        """
        return max(self.number, self.made - EARLIER_SECONDS * _NANO), self.run, self.uid


class HostQueue(NamedTuple):
    """One host on which a run may start, with its places (GPUs or slots) and its tickets. A ticket is a run's entry
    in the host's queue.
    """

    total: int  # number of the host's places
    free: int
    tickets: tuple[Ticket, ...]
    uid: int  # the run's user on the host


def in_order(tickets: Iterable[Ticket], total: int) -> list[Ticket]:
    """Return the valid tickets in order.

    A ticket is valid if it was renewed recently and needs no more places than the host has. At most MOST_OF_USER
    tickets of each user are valid.
    """
    found: list[Ticket] = []
    of_user: dict[int, int] = {}
    for ticket in sorted(tickets, key=lambda each: each.order):
        if ticket.is_fresh and 0 < ticket.needs <= total and of_user.get(ticket.uid, 0) < MOST_OF_USER:
            of_user[ticket.uid] = of_user.get(ticket.uid, 0) + 1
            found.append(ticket)
    return found


def own(queue: HostQueue, run: str) -> list[Ticket]:
    """Return a list with the run's own ticket on a host, or an empty list if the run has none."""
    return [each for each in queue.tickets if each.uid == queue.uid and each.run == run][:1]


def before(queue: HostQueue, run: str) -> list[Ticket]:
    """Return the valid tickets before the run's ticket, or all valid tickets if the run has none yet."""
    mine = own(queue, run)
    return [each for each in in_order(queue.tickets, queue.total) if not mine or each.order < mine[0].order]


def has_room(queue: HostQueue, run: str, count: int) -> bool:
    """Return whether `count` places are free for the run, in addition to those that earlier tickets need."""
    return queue.free - sum(each.needs for each in before(queue, run)) >= count


def may_start(wanted: Iterable[tuple[HostQueue, int]], run: str) -> bool:
    """Return whether it is the run's turn, because each of its hosts has enough free places for it."""
    return all(has_room(queue, run, count) for queue, count in wanted)
