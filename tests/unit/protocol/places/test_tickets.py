"""Who may start on shared hosts: examples of the rule, and that whatever runs there are, the first is never held up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol.places.tickets import (
    EARLIER_SECONDS,
    FRESH_SECONDS,
    MOST_OF_USER,
    HostQueue,
    Ticket,
    before,
    has_room,
    in_order,
    may_start,
)

SECOND = 10**9
ALICE, BOB = 1, 2


def ticket(run: str, number: int, *, uid: int = ALICE, needs: int = 1, age: float = 0.0, late: int = 0) -> Ticket:
    """A ticket that was drawn at this second, and laid `late` seconds after it."""
    return Ticket(uid, run, needs, number * SECOND, (number + late) * SECOND, age)


def host(*tickets: Ticket, free: int = 2, total: int = 2, uid: int = ALICE) -> HostQueue:
    return HostQueue(total, free, tickets, uid)


def test_the_first_may_start_and_the_second_waits_for_what_is_left() -> None:
    queue = host(ticket("one", 1, needs=2), ticket("two", 2))
    assert has_room(queue, "one", 2)
    assert not has_room(queue, "two", 1)
    assert has_room(host(*queue.tickets, free=3, total=3), "two", 1)
    assert not has_room(queue, "three", 1)  # one that has no ticket yet comes after all


def test_one_that_is_not_renewed_is_passed_over_and_comes_back_at_its_place() -> None:
    assert before(host(ticket("one", 1, age=FRESH_SECONDS + 1), ticket("two", 2)), "two") == []
    assert [each.run for each in before(host(ticket("one", 1, age=1), ticket("two", 2)), "two")] == ["one"]
    assert before(host(ticket("one", 1, age=-2 * FRESH_SECONDS), ticket("two", 2)), "two") == []  # a clock was wrong


def test_nobody_is_believed_to_have_come_much_earlier_than_the_kernel_says() -> None:
    liar = ticket("liar", 1, uid=BOB, late=1000)  # laid in second 1001
    assert liar.is_early
    earlier, later = ticket("one", 1001 - EARLIER_SECONDS - 1), ticket("two", 1001 - EARLIER_SECONDS + 1)
    assert [each.run for each in in_order([liar, later, earlier], 2)] == ["one", "liar", "two"]


def test_so_many_tickets_of_a_user_count() -> None:
    many = [ticket(f"r{number:02}", number, uid=BOB) for number in range(1, 100)]
    last = ticket("mine", 1000)
    assert [each.run for each in before(host(*many, last), "mine")] == [each.run for each in many[:MOST_OF_USER]]


def test_one_that_asks_for_more_than_there_is_holds_up_nobody() -> None:
    assert before(host(ticket("huge", 1, uid=BOB, needs=3), ticket("none", 1, uid=BOB, needs=0), ticket("mine", 2)),
                  "mine") == []  # fmt: skip


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """The places of some hosts, and what each of some runs needs of which, in the order in which they came."""
    hosts = {name: draw(st.integers(1, 4)) for name in "abc"[: draw(st.integers(1, 3))]}
    runs = {}
    for number in range(draw(st.integers(1, 8))):
        some = draw(st.sets(st.sampled_from(sorted(hosts)), min_size=1))
        runs[f"r{number}"] = {name: draw(st.integers(1, hosts[name])) for name in sorted(some)}
    return hosts, runs


@given(clusters(), st.data())
def test_all_start_in_the_end_and_none_that_may_start_makes_an_earlier_one_wait(
    cluster: tuple[dict[str, int], dict[str, dict[str, int]]], data: st.DataObject
) -> None:
    """Whichever of those that may start does so next, and whichever run ends next."""
    hosts, runs = cluster
    waiting, going = list(runs), list[str]()

    def free(name: str) -> int:
        return hosts[name] - sum(runs[run].get(name, 0) for run in going)

    def seen(name: str) -> HostQueue:
        tickets = [ticket(run, list(runs).index(run), needs=runs[run][name]) for run in waiting if name in runs[run]]
        return host(*tickets, free=free(name), total=hosts[name])

    def startable() -> list[str]:
        return [run for run in waiting if may_start([(seen(name), runs[run][name]) for name in runs[run]], run)]

    while waiting:
        if found := startable():
            next_one = data.draw(st.sampled_from(found))
            earlier = [run for run in found if waiting.index(run) < waiting.index(next_one)]
            waiting.remove(next_one)
            going.append(next_one)
            assert all(free(name) >= 0 for name in hosts), "double hold"
            assert set(earlier) <= set(startable()), "an earlier run was held up"
        else:
            assert going, "all wait and nothing runs"
            going.remove(data.draw(st.sampled_from(going)))
