"""orch events: each event on a line, whatever it holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.render.events import event_lines
from orchestrator.protocol.events import KINDS

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
FIELDS = ("attempt", "culprit", "cause", "step", "error", "rank", "code", "signal", "pids", "outcome", "survivors")
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@given(
    st.lists(st.dictionaries(st.sampled_from(["time", "node", "reason", "ranks", *FIELDS]), values)),
    st.sampled_from(sorted(KINDS)),
)
def test_any_event_is_one_line(found: list[dict[str, Any]], kind: str) -> None:
    lines = list(event_lines([{**event, "kind": kind} for event in found]))
    assert len(lines) == len(found)
    assert not [line for line in lines if "\n" in line or "\r" in line or "\x1b" in line]


def test_what_an_event_holds_can_be_told_apart() -> None:
    event = {"kind": "used", "time": 0.25, "node": 0, "seq": 3, "mono": 1.5, "by": 1, "reason": "it is gone"}
    (line,) = event_lines([event])
    assert line.split(maxsplit=2)[2] == 'node 0    used                by=1  reason="it is gone"'
    assert line.split()[1].endswith(":00.250")


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"kind": "snapshot", "files": 13, "bytes": 2048, "git": None, "dirty": False},
         "copied the code: 13 files, 2.0 KiB, no git"),
        ({"kind": "agent_started", "pid": 46, "host": "n1", "cores": 8, "gpus": 0, "nproc": 2},
         "the agent runs on n1, pid 46: 2 ranks, 8 cores, no GPU"),
        ({"kind": "joined", "joined": 0, "host": "n1", "nproc": 2}, "node 0 (n1) joined with 2 ranks"),
        ({"kind": "launcher_imported", "attempt": 0, "seconds": 1.23, "torch": "2.9"},
         "the launcher of attempt 0 is up after 1.2 s, torch 2.9"),
        ({"kind": "go", "attempt": 1, "world_size": 4, "resume_from": "last.pt"},
         "attempt 1 of 4 ranks starts; orch offers the checkpoint last.pt"),
        ({"kind": "started", "attempt": 0, "ranks": [2, 4]}, "started ranks 2-3 of attempt 0"),
        ({"kind": "started", "attempt": 0, "ranks": [3, 4]}, "started rank 3 of attempt 0"),
        ({"kind": "launcher_started", "attempt": 0, "pids": {"2": 91}}, "the launcher has started 1 rank"),
        ({"kind": "launcher_killed", "reason": "its ranks did not end in time"},
         "killed the launcher: its ranks did not end in time"),
        ({"kind": "stacks", "attempt": 0, "ranks": {"0": {}, "1": {}}, "recorders": {}},
         "recorded the stacks of 2 ranks: orch stacks and orch why"),
        ({"kind": "rank_exit", "rank": 1, "code": 2, "signal": None, "error": None}, "rank 1 ended with exit code 2"),
        ({"kind": "rank_exit", "rank": 1, "code": 1, "signal": None, "sent": "SIGTERM",
          "error": {"type": "RuntimeError", "message": "Socket closed"}},
         "rank 1 ended with exit code 1: RuntimeError: Socket closed, because another rank had failed, as requested"),
        ({"kind": "attempt_failed", "attempt": 0, "cause": "user_error", "step": 7,
          "culprit": {"rank": 1, "code": 1, "node": 0, "host": "n1", "tail": ["x" * 2000]}},
         "attempt 0 failed after step 7 (user error): rank 1 on node 0 (n1) ended with exit code 1"),
        ({"kind": "gang_ended", "attempt": 0, "outcome": "failed", "cause": "infra", "reason": ""}, "the run failed"),
        ({"kind": "agent_ended", "outcome": "failed", "swept": 0, "survivors": []}, "the agent ended (failed)"),
        ({"kind": "agent_ended", "outcome": "failed", "swept": 2, "survivors": [7]},
         "the agent ended (failed); ended 2 processes left by the ranks; could not end 1 process"),
        ({"kind": "lost_node", "lost": 1, "reason": "it is gone"}, "node 1 was lost: it is gone"),
        ({"kind": "lost_node", "reason": "it is gone"}, 'reason="it is gone"'),
    ],
)  # fmt: skip
def test_an_event_is_a_sentence(event: dict[str, Any], said: str) -> None:
    (line,) = event_lines([event])
    assert line.endswith(f"  {said}")
    assert len(line) < 200


def test_a_long_value_is_cut_off() -> None:
    (line,) = event_lines([{"kind": "used", "by": "x" * 1000}])
    assert line.endswith(f"by={'x' * 120}...")
