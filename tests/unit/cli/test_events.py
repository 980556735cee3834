"""orch events: each event on a line, whatever it holds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.render.events import event_lines

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@given(st.lists(st.dictionaries(st.sampled_from(["time", "node", "reason", "ranks"]), values)))
def test_any_event_is_one_line(found: list[dict[str, Any]]) -> None:
    lines = list(event_lines([{**event, "kind": "started"} for event in found]))
    assert len(lines) == len(found)
    assert not [line for line in lines if "\n" in line or "\r" in line or "\x1b" in line]


def test_what_an_event_holds_can_be_told_apart() -> None:
    event = {"kind": "lost_node", "time": 0.25, "node": 0, "seq": 3, "mono": 1.5, "lost": 1, "reason": "it is gone"}
    (line,) = event_lines([event])
    assert line.split(maxsplit=2)[2] == 'node 0    lost_node           lost=1  reason="it is gone"'
    assert line.split()[1].endswith(":00.250")
