"""What is known of a run's outputs: what is here, what is on which machine, and when a run may be forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator.cli import orch
from orchestrator.cli.render.runs import left_lines
from orchestrator.errors import EXIT_FILES_LEFT, EXIT_SUCCEEDED
from orchestrator.outcome.verdict import Outcome, Verdict
from orchestrator.protocol.events import LeftBehind, read_events
from orchestrator.runs.files.outputs import outputs_of, passed_over
from orchestrator.runs.reducer import left_outputs
from orchestrator.runs.state import LeftOutputs, RunState, RunStatus
from orchestrator.runs.store import RunDir, create_run
from orchestrator.supervisor.supervisor import prune
from tests.events import event
from tests.unit.views.runs_made import begin, end, make

LEFT: dict[str, Any] = {
    "kind": "outputs_left",
    "left": 1,
    "host": "n2",
    "folder": "~/r",
    "files": 3,
    "bytes": 2048,
    "reason": "large",
}
AWAY = event("left_behind", left=0, host="n1", folder="~/r", reason="n1: no route")


def test_what_is_left_is_what_was_said_last_of_each_node() -> None:
    assert left_outputs([AWAY, event(**LEFT)]) == (
        LeftOutputs(0, "n1", "~/r", None, 0, "n1: no route"),
        LeftOutputs(1, "n2", "~/r", 3, 2048, "large"),
    )
    assert [each.node for each in left_outputs([event(**LEFT), AWAY, event("outputs_brought", left=1)])] == [0]


@pytest.mark.parametrize("damage", [{"left": "1"}, {"left": None}, {"kind": 3}])
def test_a_damaged_event_says_nothing(damage: dict[str, object]) -> None:
    assert left_outputs(read_events([{**LEFT, **damage}])) == ()


def test_a_page_says_where_it_is_why_and_how_it_is_fetched() -> None:
    state = RunState("r-1", "r", "p", 0.0, RunStatus.SUCCEEDED, left=left_outputs([AWAY, event(**LEFT)]))
    assert left_lines(state)[1:] == [
        "  some outputs are still on its machines:",
        "    n1:~/r: files not counted: n1: no route",
        "    n2:~/r: 3 files, 2.0 KiB: large",
        "  fetch them: orch pull r-1 --outputs",
    ]


def test_copies_that_are_under_way_are_no_outputs(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.write("run.json", {"kind": "ssh"})
    for name in ("a", "node_2/b", "node_x", ".c.0123456789abcdef.partial", ".kept"):
        (tmp_path / "outputs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "outputs" / name).write_text("1")
    (tmp_path / "nodes/0").mkdir(parents=True)
    run.write("nodes/0/outputs.json", {"passed_over": ["/run/code/out"]})
    assert [(each.path, each.node) for each in outputs_of(run)] == [
        (".kept", 0),
        ("a", 0),
        ("node_2/b", 2),
        ("node_x", 0),
    ]
    assert passed_over(run) == ["/run/code/out"]


def test_a_run_whose_machines_hold_outputs_is_not_pruned(tmp_path: Path) -> None:
    runs = [create_run(tmp_path, f"job-aaaaa{number}", {}) for number in range(3)]
    for run in runs:
        run.write("verdict.json", {"outcome": "succeeded"})
    runs[0].append_event(event(**LEFT))
    assert prune(tmp_path, 1) == [runs[1]]


def test_with_a_workdir_the_records_and_the_sent_code_are_no_outputs(tmp_path: Path) -> None:
    run, there = RunDir(tmp_path / "home/runs/r-aaaaaa"), tmp_path / "work/runs/r-aaaaaa"
    for file in (run.path / "code/train.py", there / "code/train.py", there / "code/model.pt", there / "outputs/a"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")
    (there / "results").mkdir()
    (there / "results/b").write_text("1")
    run.write("run.json", {"kind": "slurm"})
    run.write("plan.json", {"tasks": [{"run_dir": str(there), "code_dir": str(there / "code")}]})
    assert {each.path for each in outputs_of(run)} - {"train.py"} == {"a", "beside/results/b", "model.pt"}


@pytest.mark.parametrize("left", [{0: EXIT_FILES_LEFT}, {1: EXIT_FILES_LEFT}, {2: EXIT_SUCCEEDED}, {}])
@pytest.mark.parametrize("words", [("wait",), ("logs", "--follow")])
def test_wait_and_follow_tell_what_was_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: dict[int, int], words: tuple[str, ...]
) -> None:
    """Node 2 of two nodes is a machine that another machine has replaced."""
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    run = make(tmp_path, "r-abcdef", nodes=2, kind="ssh", profile={"hosts": ["n1", "n2"]})
    begin(run, nodes=2)
    for node in left:
        run.append_event(LeftBehind(left=node, host="n9", folder="~/r", reason="n9: no route"))
    end(run, Verdict(Outcome.SUCCEEDED))
    done = CliRunner().invoke(orch, [*words, run.run_id], standalone_mode=False)
    assert done.return_value == next(iter(left.values()), EXIT_SUCCEEDED), done.output
    assert ("n9:~/r: files not counted: n9: no route" in done.output) == bool(left)
