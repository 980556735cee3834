"""Everybody's runs on shared hosts, as the hosts say it, and the page of them."""

from __future__ import annotations

from typing import Any

from orchestrator.cli.render.results import shared_runs_page
from orchestrator.runs.shared_hosts import host_queue, queue_record, runs_on

NOW = 1_700_000_000


def holder(user: str, run: str | None) -> dict[str, Any]:
    return {"uid": len(user), "user": user, "run": run, "since": NOW - 120 if run else None}


def ticket(user: str, run: str, number: int, *, needs: int = 2, age: float = 1.0) -> dict[str, Any]:
    moment = (NOW + number) * 10**9
    return {"uid": len(user), "user": user, "run": run, "needs": needs, "number": moment, "made": moment, "age": age}


def answer(holders: list[Any], tickets: list[Any], uid: int = 3) -> dict[str, Any]:
    return {"places": {f"slot-{n}": each for n, each in enumerate(holders)}, "tickets": tickets, "uid": uid, "now": 1}


HOSTS = {
    "n1": answer(
        [holder("alice", "hold-1"), holder("alice", "hold-1"), None],
        [ticket("bob", "two-1", -50), ticket("alice", "three-1", -40), ticket("carola", "shut-1", -60, age=61.0)],
    ),
    "n2": answer([holder("alice", "hold-1"), None, holder("dd", None)], [ticket("bob", "two-1", -50, needs=1)]),
}


def test_all_runs_are_shown_in_the_order_of_the_queue() -> None:
    assert [line.split(maxsplit=4) for line in shared_runs_page(runs_on(HOSTS), NOW).splitlines()] == [
        ["QUEUE", "USER", "RUN", "STATE", "PLACES            FOR"],
        ["-", "dd", "?", "running", "1 on n2           -"],
        ["-", "alice", "hold-1", "running", "2 on n1; 1 on n2  2 min 00 s"],
        ["1", "bob", "two-1", "waiting", "2 on n1; 1 on n2  50.0 s"],
        ["2", "alice", "three-1", "waiting", "2 on n1           40.0 s"],
        ["-", "carola", "shut-1", "passed", "over  2 on n1           1 min 00 s"],
    ]


def test_a_run_is_told_its_position_who_is_before_it_and_who_holds_what() -> None:
    record = queue_record("two-1", HOSTS)
    assert (record["position"], record["before"]) == (1, [])
    assert record["why"].startswith("number 1 in the queue: dd (who names no run) holds 1 place of n2; alice (hold-1) ")
    behind = queue_record("three-1", {"n1": {**HOSTS["n1"], "uid": 5}})
    assert (behind["position"], [each["run"] for each in behind["before"]]) == (2, ["two-1"])
    assert "after bob (two-1)" in behind["why"]


def test_what_the_run_itself_holds_counts_as_free() -> None:
    places = [holder("bob", "two-1"), holder("alice", "hold-1"), holder("alice", "two-1")]
    assert host_queue(answer(places, []), "two-1").free == 1


def test_a_run_that_claims_to_wait_for_longer_than_its_ticket_is_shown_at_its_own_position() -> None:
    early = {**ticket("bob", "late-1", -500), "made": (NOW - 20) * 10**9}
    found = runs_on({"n1": answer([None, None], [early, ticket("alice", "first-1", -40)])})
    assert [(each.run, each.position) for each in found] == [("first-1", 1), ("late-1", 2)]
