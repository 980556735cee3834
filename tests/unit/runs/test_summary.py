"""The run record is a pure reduction: phases, ends, versions and hours from the events."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.protocol.events import read_events
from orchestrator.runs.record import RunRecord
from orchestrator.runs.summary import code_note, code_of, run_record
from tests.events import typed

RUN = RunRecord("r-1", orch="0.1.0", python="3.11.7", created=1000.0, job_document={"name": "r"})
SNAPSHOT = {"kind": "snapshot", "time": 1000.1, "files": 2, "bytes": 10, "sha256": "aa", "git": "c0ffee" * 7,
            "dirty": True, "diff": "dd", "untracked": ["a", "b"]}  # fmt: skip


def event(kind: str, node: int, at: float, **values: Any) -> dict[str, Any]:
    return {"kind": kind, "node": node, "time": 1000.0 + at, "mono": 50.0 + at, "seq": 0, **values}


def node_events(node: int, host: str) -> list[dict[str, Any]]:
    return [
        event("agent_started", node, 1, host=host, python="3.11.2", cores=8, gpus=2, nproc=2),
        event("launcher_imported", node, 4, attempt=0, seconds=2.5 + node, torch="2.15.0"),
        event("started", node, 5, attempt=0, ranks=[2 * node, 2 * node + 2]),
        *[event("rank_exit", node, 15, attempt=0, rank=2 * node + local, code=1, signal=None) for local in (0, 1)],
        event("started", node, 20, attempt=1, ranks=[2 * node, 2 * node + 2]),
        *[event("rank_exit", node, 30, attempt=1, rank=2 * node + local, code=0, signal=None) for local in (0, 1)],
        event("agent_ended", node, 37, outcome="succeeded", code=0),
    ]


GANG = [
    event("joined", 0, 2, joined=0), event("joined", 0, 3, joined=1), event("go", 0, 5, attempt=0, world_size=4),
    event("attempt_failed", 0, 16, attempt=0, cause="infra", culprit={"rank": 0}),
    event("restart", 0, 16, attempt=1, cause="infra"), event("go", 0, 20, attempt=1, world_size=4),
    event("gang_ended", 0, 31, attempt=1, outcome="succeeded", cause="", reason=""),
]  # fmt: skip
EVENTS = [
    SNAPSHOT, {"kind": "submitted", "time": 1000.5},
    *sorted([*node_events(0, "a"), *GANG], key=lambda e: e["time"]), *node_events(1, "b"),
]  # fmt: skip
METRICS = [{"kind": "save", "seconds": 0.5, "attempt": 1}, {"kind": "save", "seconds": 0.25, "attempt": 1},
           {"kind": "train", "step": 1}, {"kind": "save", "problem": "disk"}]  # fmt: skip


def test_phases_in_their_order() -> None:
    phases = run_record(RUN, typed(EVENTS), metrics=METRICS)["phases"]
    assert [(each["phase"], each["attempt"], each["seconds"]) for each in phases] == [
        ("submitting", 0, 0.5), ("queued", 0, 0.5), ("joining", 0, 2.0), ("importing", 0, 3.5), ("starting", 0, 2.0),
        ("running", 0, 11.0), ("starting", 1, 4.0), ("running", 1, 11.0), ("saving", 1, 0.75), ("ending", 1, 6.0),
    ]  # fmt: skip


def test_ends_versions_and_hours() -> None:
    record = run_record(RUN, typed(EVENTS))
    assert [(each["attempt"], list(each["exits"])) for each in record["attempts"]] == [
        (0, ["0", "1", "2", "3"]), (1, ["0", "1", "2", "3"])
    ]  # fmt: skip
    assert record["attempts"][0]["exits"]["2"] == {"code": 1, "signal": None, "how": "exit code 1"}
    assert record["hosts"] == ["a", "b"]
    assert record["versions"]["nodes"][1] == {"node": 1, "host": "b", "python": "3.11.2", "torch": "2.15.0"}
    assert record["hours"] == {
        "rank_hours": round(4 * 20 / 3600, 6), "cpu_hours": round(2 * 36 * 8 / 3600, 6),
        "gpu_hours": round(2 * 36 * 2 / 3600, 6), "gpu_watt_hours": None,
    }  # fmt: skip


def test_a_host_with_two_agents_counts_once_and_a_live_run_counts_so_far() -> None:
    one_host = [{**e, "host": "a"} if e["kind"] == "agent_started" else e for e in EVENTS]
    assert run_record(RUN, typed(one_host))["hours"]["cpu_hours"] == round(36 * 8 / 3600, 6)
    living = [e for e in EVENTS if e["time"] <= 1025]
    hours = run_record(RUN, typed(living), now=1031.0)["hours"]
    assert hours["cpu_hours"] == round(2 * 30 * 8 / 3600, 6)
    assert hours["rank_hours"] == round(4 * (10 + 11) / 3600, 6)


def test_the_note_on_code_that_is_in_no_commit() -> None:
    assert code_note(typed(EVENTS)) == (
        "note: the code folder is commit c0ffeec0f with uncommitted changes and 2 untracked files; "
        "a snapshot of it is stored with the run"
    )
    assert code_note(typed([{**SNAPSHOT, "dirty": False}])) == ""
    assert code_note([]) == ""
    assert "has no git commit" in code_note(typed([{**SNAPSHOT, "git": None, "diff": None}]))
    code = code_of(typed(EVENTS))
    assert code is not None
    assert code["sha256"] == "aa"


VALUES = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3) | st.lists(st.integers(0, 3))
)
KINDS = st.sampled_from([e["kind"] for e in EVENTS])
DAMAGED = st.fixed_dictionaries(
    {"kind": KINDS | VALUES},
    optional=dict.fromkeys(("node", "time", "mono", "attempt", "rank", "ranks", "seconds", "host", "cores"), VALUES),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(DAMAGED, max_size=8), st.integers(0, len(EVENTS)))
def test_damaged_events_break_nothing(damaged: list[dict[str, Any]], cut: int) -> None:
    events = read_events([*EVENTS[:cut], *damaged, *EVENTS[cut:]])
    json.dumps(run_record(RunRecord("r-1"), events, metrics=damaged, now=2000.0))
    code_note(read_events(damaged))
