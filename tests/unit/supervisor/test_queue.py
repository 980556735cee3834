"""Which queued runs are runnable, and what the others wait for."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import BackendError
from orchestrator.looking.state import state_of
from orchestrator.runs.dependencies import VALUES_FOR_START, Wait, is_queued, wait_of, why_it_waits
from orchestrator.runs.record import Dependency, RunRecord
from orchestrator.runs.run_id import point_id
from orchestrator.runs.start_lock import being_started
from orchestrator.runs.store import RunDir, create_run
from orchestrator.runs.sweeps import make_sweep
from orchestrator.supervisor import queue, starting
from orchestrator.supervisor.queue import drop, may_start, recorded_start, runnable, start_here, start_queued
from orchestrator.supervisor.reconcile import reconcile
from orchestrator.supervisor.starting import enqueue
from orchestrator.supervisor.supervisor import _look_after
from tests.events import event
from tests.patience import PATIENCE
from tests.unit.specs.test_plan import planned

SWEEP = "a-222222"
REMOVED = "a-222222.1, after which it was to start, was removed"


def queued(root: Path, run_id: str, **record: Any) -> RunDir:
    run = create_run(root, run_id, {"run_id": run_id, "kind": "local", "nnodes": 1, "created": 1.0, **record})
    run.append_event(event("held"))
    run.write(VALUES_FOR_START, held({"PATH": "/bin"}), private=True)
    return run


def held(environment: dict[str, str], **secrets: str) -> dict[str, Any]:
    return {"environment": environment, "secrets": secrets}


@pytest.mark.parametrize(
    ("outcome", "wants", "wait"),
    [
        (None, "ok", Wait("waits for b-333333 to succeed")),
        (None, "any", Wait("waits for b-333333 to end")),
        ("succeeded", "ok", None),
        ("failed", "any", None),
        ("failed", "ok", Wait("b-333333, after which it was to start, failed", is_unsatisfiable=True)),
        ("cancelled", "ok", Wait("b-333333, after which it was to start, was cancelled", is_unsatisfiable=True)),
    ],
)
def test_what_a_run_waits_for(tmp_path: Path, outcome: str | None, wants: str, wait: Wait | None) -> None:
    before = create_run(tmp_path, "b-333333", {})
    if outcome:
        before.write("verdict.json", {"outcome": outcome})
    assert wait_of(tmp_path, Dependency("b-333333", wants == "ok")) == wait


def test_a_run_that_was_removed_has_ended(tmp_path: Path) -> None:
    assert wait_of(tmp_path, Dependency("gone-444444", succeeds=False)) is None
    removed = wait_of(tmp_path, Dependency("gone-444444", succeeds=True))
    assert removed is not None
    assert removed.is_unsatisfiable


@pytest.mark.parametrize(
    ("outcomes", "wants", "wait"),
    [
        (("succeeded", None), "ok", Wait("waits for all of a-222222 to succeed")),
        (("failed", None), "any", Wait("waits for all of a-222222 to end")),
        (("failed", "succeeded"), "any", None),
        (("succeeded", "succeeded"), "ok", None),
        ((None, "failed"), "ok", Wait("a-222222.1, after which it was to start, failed", is_unsatisfiable=True)),
        (
            ("succeeded", "removed"),
            "ok",
            Wait("a-222222.1, after which it was to start, was removed", is_unsatisfiable=True),
        ),
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
    assert wait_of(tmp_path, Dependency(SWEEP, wants == "ok")) == wait
    (tmp_path / "sweeps" / SWEEP / "sweep.json").write_text("damaged")
    left = [each for each in outcomes if each != "removed"]
    if len(left) == len(outcomes):
        assert wait_of(tmp_path, Dependency(SWEEP, wants == "ok")) == wait


@given(st.integers(1, 5), st.integers(0, 12), st.integers(0, 12))
def test_of_a_sweep_as_many_go_as_it_allows_in_order(parallel: int, going: int, waiting: int) -> None:
    root = Path("/nowhere")
    records = [{"created": -index, "sweep": {"index": index, "parallel": parallel}} for index in range(20)]
    runs = [RunDir(root / "runs" / point_id(SWEEP, index)) for index in range(20)]
    mine = [
        (runs[index], RunRecord.from_json("", records[index]))
        for index in reversed(range(going, going + min(waiting, 20 - going)))
    ]
    found = runnable(root, mine, {run.run_id for run in runs[:going]})
    free = max(0, min(parallel - going, len(mine)))
    assert [run.run_id for run, _ in found] == [point_id(SWEEP, going + index) for index in range(free)]


def test_a_dropped_run_is_cancelled_and_says_why(tmp_path: Path) -> None:
    run = queued(tmp_path, "c-555555", after={"run": "b-333333", "if": "ok"})
    create_run(tmp_path, "b-333333", {})
    assert (state_of(run).state, state_of(run).detail) == ("pending", "waits for b-333333 to succeed")
    assert reconcile(tmp_path, run) is None
    assert drop(run, "no reason")
    assert not drop(run, "another")
    verdict = reconcile(tmp_path, run)
    assert verdict is not None
    assert (verdict.outcome, verdict.reason) == ("cancelled", "no reason")
    assert not is_queued(run)


def test_a_queued_run_that_was_damaged_is_told_as_failed(tmp_path: Path) -> None:
    run = queued(tmp_path, point_id(SWEEP, 0), sweep={"index": 0, "parallel": 1})
    assert why_it_waits(tmp_path, run, run.record()) == f"waits for its turn: 1 of {SWEEP} at a time"
    (run.path / "plan.json").write_text('{"version": 1, "tasks"')
    start_here(run)
    verdict = reconcile(tmp_path, run)
    assert verdict is not None
    assert (verdict.outcome, "plan.json can't be read" in verdict.reason) == ("failed", True)


class Dead:
    """A backend over connections of which one was dead: it can't tell whether the machine is out of reach."""

    def submit(self, *_: object) -> None:
        raise BackendError("n1: no answer within 60 s", transient=True)

    def turn(self, _: object) -> None:
        return None


def test_a_start_over_a_connection_that_was_dead_is_made_by_a_program_that_dials_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, by_program = queued(tmp_path, "c-555555"), list[RunDir]()
    run.write("plan.json", planned().to_json())
    for module in (queue, starting):
        monkeypatch.setattr(module, "backend_for", lambda _: Dead())
    monkeypatch.setattr(queue, "_can_start_here", lambda *_: True)
    monkeypatch.setattr(queue, "_start_by_program", lambda _, run, __: by_program.append(run))
    start_queued(tmp_path, run)
    assert by_program == [run]
    assert is_queued(run)
    assert [event.kind for event in run.events()] == ["held"]
    start_here(run)  # as that program does: no try follows its own
    assert [event.kind for event in run.events()] == ["held", "submit_failed"]


@pytest.mark.parametrize(
    ("is_shared", "its_turn", "has_begun", "starts"),
    [
        (False, False, False, True),
        (True, True, False, True),
        (True, False, False, False),
        (True, False, True, True),
        (True, None, False, False),
    ],
)
def test_a_run_starts_at_its_turn_on_shared_hosts_and_an_interrupted_start_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_shared: bool,
    its_turn: bool | None,
    has_begun: bool,
    starts: bool,
) -> None:
    def join() -> bool:
        if its_turn is None:
            raise BackendError("n1: no answer", transient=True)
        return its_turn

    monkeypatch.setattr(queue, "_waiting", lambda _: SimpleNamespace(join=join) if is_shared else None)
    run = queued(tmp_path, "c-555555")
    if has_begun:
        run.write("handle.json", {"state": "intent"})
    assert may_start(run) is starts
    (run.path / VALUES_FOR_START).unlink()
    assert not may_start(run)


@pytest.mark.parametrize(
    ("job", "secrets", "here"),
    [
        ({"environment": None}, {"TOKEN": "t"}, True),
        ({"environment": {"lock": "uv.lock"}}, {}, True),
        ({"environment": {"lock": "uv.lock"}}, {"UV_INDEX_A_PASSWORD": "t"}, False),
        ("damaged", {"TOKEN": "t"}, False),
    ],
)
def test_packages_that_a_secret_may_open_are_chosen_by_a_program_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: object, secrets: dict[str, str], here: bool
) -> None:
    run = queued(tmp_path, "c-555555", kind="ssh")
    run.write("plan.json", {"job": job, "tasks": []})
    monkeypatch.setattr(os, "environ", {"PATH": "/bin", "ORCH_HOME": str(tmp_path)})
    assert queue._can_start_here(run, held({"PATH": "/bin"}, **secrets)) is here
    assert not queue._can_start_here(run, held({"PATH": "/usr/bin"}, **secrets))


def test_a_cancel_that_was_only_recorded_is_carried_out(tmp_path: Path) -> None:
    run = queued(tmp_path, "c-555555")
    run.write("cancel.json", {"now": True})
    ((found, wait),) = runnable(tmp_path, [(run, run.record())], set())
    assert found == run
    assert wait is not None
    assert wait.is_unsatisfiable
    start_here(run)
    assert is_queued(run)  # it is not started any more


def test_a_run_that_was_looked_at_before_it_was_queued_is_let_go_of(tmp_path: Path) -> None:
    """Else nobody would ever start it: the thread that looks after it waits for its agents."""
    run = create_run(tmp_path, "c-555555", {"run_id": "c-555555", "kind": "local", "nnodes": 1, "created": 1.0})
    thread = threading.Thread(target=_look_after, args=(tmp_path, run), daemon=True)
    with being_started(run):
        thread.start()
        thread.join(1.5)
        assert thread.is_alive()
        enqueue(run, {})
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert is_queued(run)
    _look_after(tmp_path, run)  # as if it had been listed before it was queued
    assert is_queued(run)


def test_a_start_that_was_cut_off_goes_on_with_its_credentials_and_each_run_has_its_own(tmp_path: Path) -> None:
    runs = [queued(tmp_path, name) for name in ("a-222222.0", "a-222222.1")]
    runs[0].write(VALUES_FOR_START, held({"PATH": "/bin"}, KEY="value"), private=True)
    (runs[1].path / VALUES_FOR_START).unlink()
    os.link(runs[0].path / VALUES_FOR_START, runs[1].path / VALUES_FOR_START)  # as the points of a sweep have it
    for run in runs:
        run.write("plan.json", planned().to_json())
    values = [recorded_start(run)[1] for run in (*runs, *runs)]
    assert values[:2] == values[2:]
    assert "PRIVATE KEY" in values[0]["credentials"]
    assert values[0]["credentials"] != values[1]["credentials"]
    assert values[0]["secrets"] == {"KEY": "value"}
    assert all((run.path / VALUES_FOR_START).stat().st_mode & 0o777 == 0o600 for run in runs)
