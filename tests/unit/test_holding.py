"""Which held runs are due, and what the others wait for."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.conclude import conclude, state_of
from orchestrator.holding import HELD, Wait, drop, due, is_held, keep, start_here, wait_of, why_it_waits
from orchestrator.node.processes import identify
from orchestrator.store import RunDir, create_run
from orchestrator.supervisor import _look_after
from orchestrator.sweep import point_id
from orchestrator.sweeps import make_sweep

SWEEP = "a-222222"


def held(root: Path, run_id: str, **record: Any) -> RunDir:
    run = create_run(root, run_id, {"run_id": run_id, "kind": "local", "nnodes": 1, "created": 1.0, **record})
    run.append_event("held")
    run.write(HELD, keep({"PATH": "/bin"}, {}), private=True)
    return run


@pytest.mark.parametrize(
    ("outcome", "wants", "wait"),
    [
        (None, "ok", Wait("waits for b-333333 to succeed")),
        (None, "any", Wait("waits for b-333333 to end")),
        ("succeeded", "ok", None),
        ("failed", "any", None),
        ("failed", "ok", Wait("b-333333, after which it was to start, failed", is_vain=True)),
        ("cancelled", "ok", Wait("b-333333, after which it was to start, was cancelled", is_vain=True)),
    ],
)
def test_what_a_run_waits_for(tmp_path: Path, outcome: str | None, wants: str, wait: Wait | None) -> None:
    before = create_run(tmp_path, "b-333333", {})
    if outcome:
        before.write("verdict.json", {"outcome": outcome})
    assert wait_of(tmp_path, {"run": "b-333333", "if": wants}) == wait


def test_a_run_that_was_removed_has_ended(tmp_path: Path) -> None:
    assert wait_of(tmp_path, {"run": "gone-444444", "if": "any"}) is None
    removed = wait_of(tmp_path, {"run": "gone-444444", "if": "ok"})
    assert removed is not None
    assert removed.is_vain


@pytest.mark.parametrize(
    ("outcomes", "wants", "wait"),
    [
        (("succeeded", None), "ok", Wait("waits for all of a-222222 to succeed")),
        (("failed", None), "any", Wait("waits for all of a-222222 to end")),
        (("failed", "succeeded"), "any", None),
        (("succeeded", "succeeded"), "ok", None),
        ((None, "failed"), "ok", Wait("a-222222.1, after which it was to start, failed", is_vain=True)),
        (("succeeded", "removed"), "ok", Wait("a-222222.1, after which it was to start, was removed", is_vain=True)),
        (("succeeded", "removed"), "any", None),
    ],
)
def test_a_sweep_is_waited_for_as_one(
    tmp_path: Path, outcomes: tuple[str | None, ...], wants: str, wait: Wait | None
) -> None:
    make_sweep(tmp_path, SWEEP, None, {"points": [{}, {}]})
    for index, outcome in enumerate(outcomes):
        if outcome != "removed":
            point = create_run(tmp_path, point_id(SWEEP, index), {})
            if outcome:
                point.write("verdict.json", {"outcome": outcome})
    assert wait_of(tmp_path, {"run": SWEEP, "if": wants}) == wait
    (tmp_path / "sweeps" / SWEEP / "sweep.json").write_text("damaged")
    left = [each for each in outcomes if each != "removed"]
    if len(left) == len(outcomes):
        assert wait_of(tmp_path, {"run": SWEEP, "if": wants}) == wait


@given(st.integers(1, 5), st.integers(0, 12), st.integers(0, 12))
def test_of_a_sweep_as_many_go_as_it_allows_in_order(parallel: int, going: int, waiting: int) -> None:
    root = Path("/nowhere")
    records = [{"created": -index, "sweep": {"index": index, "parallel": parallel}} for index in range(20)]
    runs = [RunDir(root / "runs" / point_id(SWEEP, index)) for index in range(20)]
    mine = [(runs[index], records[index]) for index in reversed(range(going, going + min(waiting, 20 - going)))]
    found = due(root, mine, {run.run_id for run in runs[:going]})
    free = max(0, min(parallel - going, len(mine)))
    assert [run.run_id for run, _ in found] == [point_id(SWEEP, going + index) for index in range(free)]


def test_a_dropped_run_is_cancelled_and_says_why(tmp_path: Path) -> None:
    run = held(tmp_path, "c-555555", after={"run": "b-333333", "if": "ok"})
    create_run(tmp_path, "b-333333", {})
    assert (state_of(run).state, state_of(run).detail) == ("pending", "waits for b-333333 to succeed")
    assert conclude(tmp_path, run) is None
    assert drop(run, "no reason")
    assert not drop(run, "another")
    verdict = conclude(tmp_path, run)
    assert verdict is not None
    assert (verdict.outcome, verdict.reason) == ("cancelled", "no reason")
    assert not is_held(run)


def test_a_held_run_that_was_damaged_is_told_as_failed(tmp_path: Path) -> None:
    run = held(tmp_path, point_id(SWEEP, 0), sweep={"index": 0, "parallel": 1})
    assert why_it_waits(tmp_path, run, run.read("run.json") or {}) == f"waits for its turn: 1 of {SWEEP} at a time"
    (run.path / "plan.json").write_text('{"version": 1, "tasks"')
    start_here(run)
    verdict = conclude(tmp_path, run)
    assert verdict is not None
    assert (verdict.outcome, "plan.json can't be read" in verdict.reason) == ("failed", True)


def test_a_cancel_that_was_only_recorded_is_carried_out(tmp_path: Path) -> None:
    run = held(tmp_path, "c-555555")
    run.write("cancel.json", {"now": True})
    ((found, wait),) = due(tmp_path, [(run, {})], set())
    assert found == run
    assert wait is not None
    assert wait.is_vain
    start_here(run)
    assert is_held(run)  # it is not started any more


def test_a_run_that_was_looked_at_before_it_was_held_is_let_go_of(tmp_path: Path) -> None:
    """Else nobody would ever start it: the thread that looks after it waits for its agents."""
    me = identify(os.getpid())
    assert me is not None
    submitter = {"pid": me.pid, "started": me.started, "host": socket.gethostname()}
    record = {"run_id": "c-555555", "kind": "local", "nnodes": 1, "created": 1.0, "submitter": submitter}
    run = create_run(tmp_path, "c-555555", record)
    thread = threading.Thread(target=_look_after, args=(tmp_path, run), daemon=True)
    thread.start()
    thread.join(1.5)
    assert thread.is_alive()
    run.append_event("held")
    run.write(HELD, keep({}, {}), private=True)
    thread.join(20)
    assert not thread.is_alive()
    assert is_held(run)
    _look_after(tmp_path, run)  # as if it had been listed before it was held
    assert is_held(run)
