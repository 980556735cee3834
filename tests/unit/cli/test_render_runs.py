"""Text for people, compared with tests/golden. After a change that is meant: UPDATE_GOLDEN=1 pytest tests/unit."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.render import plans, runs
from orchestrator.outcome.verdict import Cause, NodeState, NodeStatus, Outcome, Unreachable, Verdict
from orchestrator.runs.state import AttemptSummary, Recovery, RunState, RunStatus
from orchestrator.specs.documents.loader import load
from orchestrator.specs.plan import RunPaths, differences, plan

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"
PROFILES = sorted(path.stem for path in (ROOT / "cluster_profiles").glob("*.yaml"))
RUN = "/home/me/.orch/runs/mnist_ddp-abc234"
NOW = 10_000.0

NODES = (
    NodeState(0, "n1", NodeStatus.RUNNING, (0, 2)),
    NodeState(1, "n2", NodeStatus.RUNNING, (2, 4)),
)
RUNNING = RunState("mnist_ddp-abc234", "mnist_ddp", "local-2x2", NOW - 125, RunStatus.RUNNING, world_size=4,
                   nodes=NODES, master="10.0.0.1:4242", started=NOW - 62.5)  # fmt: skip
BEAT = {"step": 340, "total": 1250, "loss": 0.12345, "rate": 5210.4, "eta": 62.0, "phase": "train"}
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\nValueError: boom'
EXCEPTION = Verdict(
    Outcome.FAILED, Cause.USER_ERROR, "rank 2 on node 1 (n2) ended with exit code 1: ValueError: boom", 0,
    rank=2, node=1, host="n2", code=1, error={"type": "ValueError", "message": "boom", "traceback": TRACEBACK},
    tail=("step 48 loss 0.31", "step 49 loss 0.30", *TRACEBACK.splitlines()),
)  # fmt: skip
KILLED = Verdict(
    Outcome.FAILED, Cause.INFRA,
    "rank 2 on node 1 (n2) ended with SIGKILL; 3 attempts in a row ended without a new checkpoint",
    2, rank=2, node=1, host="n2", signal="SIGKILL", tail=("step 48", "step 49"), survivors=(4711,),
    hint="if nobody killed the process, the host ran out of memory (dmesg shows it): use fewer ranks, or a "
         "smaller batch",
)  # fmt: skip
LOST = Verdict(Outcome.FAILED, Cause.INFRA, "node 1 (n2) was lost: no heartbeat for 6 s")


def ended(verdict: Verdict, **values: object) -> RunState:
    nodes = (replace(NODES[0], state=NodeStatus.ENDED, exits={0: "exit code 0", 1: "SIGTERM"}),
             replace(NODES[1], state=NodeStatus.LOST, exits={2: "exit code 1"}))  # fmt: skip
    return replace(
        RUNNING, state=RunStatus(verdict.outcome.value), verdict=verdict, ended=NOW - 2, nodes=nodes, **values
    )


def golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text + "\n")
    assert text + "\n" == path.read_text(), f"{name}: see the module's docstring"


def test_status_table() -> None:
    rows = [
        (RUNNING, BEAT),
        (replace(RUNNING, run_id="x-234567", state=RunStatus.STARTING, started=None, world_size=None,
                 detail="waiting for node 1"), None),
        (ended(EXCEPTION), None),
        (ended(Verdict(Outcome.FAILED, Cause.INFRA, "a very long reason " * 8)), None),
        (ended(Verdict(Outcome.FAILED, Cause.INFRA, "python can't import x: Error\nand a second line")), None),
        (ended(Verdict(Outcome.SUCCEEDED)), None),
        (ended(Verdict(Outcome.CANCELLED)), None),
        (RunState("broken-777777", "?", "?", 0.0, RunStatus.UNREADABLE, detail="run.json can't be read"), None),
    ]  # fmt: skip
    lines = [runs.status_line(state, heartbeat, NOW) for state, heartbeat in rows]
    golden("status_table", runs.status_lines(lines))
    for width in (60, 80, 100, 120):
        text = runs.status_lines(lines, width=width)
        assert max(map(len, text.splitlines())) <= width
        golden(f"status_table_{width}", text)


def test_a_machine_out_of_reach_is_named_with_since_when_and_why() -> None:
    cut = Unreachable(NOW - 40, "n2: No route to host\nand more")
    state = replace(RUNNING, nodes=(NODES[0], replace(NODES[1], unreachable=cut)))
    said = "node 1 (n2) out of reach for 40.0 s: n2: No route to host"
    assert runs.note(state, BEAT, NOW).startswith(f"{said}; step ")
    page = runs.status_page(state, BEAT, None, RUN, NOW)
    assert f"machines   {said}\n" in page
    assert page.splitlines()[0].endswith("running, n2 out of reach")
    assert "running (out of reach)" in page.splitlines()[-1]
    both = runs.note(replace(state, nodes=tuple(replace(node, unreachable=cut) for node in NODES)), BEAT, NOW)
    assert both.startswith("node 0 (n1), node 1 (n2) out of reach for 40.0 s: n2: No route")
    assert "; its progress and logs are from before; step" in both
    over = ended(LOST)
    cut_off = replace(over, nodes=tuple(replace(node, unreachable=cut) for node in over.nodes))
    assert runs.status_page(cut_off, None, None, RUN, NOW) == runs.status_page(over, None, None, RUN, NOW)


HISTORY = (
    AttemptSummary(
        0, NOW - 400, NOW - 300, "node 1 (n2) was lost: no heartbeat for 10 s, and many words more about why"
    ),
    AttemptSummary(1, None, NOW - 200, "n2 did not come back"),
    AttemptSummary(2, NOW - 62.5, None, "", "checkpoints/step_00000340"),
)
RECOVERY = Recovery(("n2",), NOW - 12, "restarting on n1, spare n4 from step 300")


@pytest.mark.parametrize("width", [None, 80])
def test_what_a_run_has_been_through(width: int | None) -> None:
    went_on = replace(RUNNING, attempts=HISTORY, attempt=2, restarts=2, job="17")
    lost = replace(RUNNING, state=RunStatus.RESTARTING, recovery=RECOVERY, attempts=HISTORY[:1], detail="start 1")
    pages = [
        runs.status_page(went_on, None, None, RUN, NOW, last_line="\x1b[31mepoch 3 |###  |\x1b[0m", width=width),
        runs.status_page(lost, BEAT, None, RUN, NOW, width=width),
        runs.status_lines([runs.status_line(lost, BEAT, NOW)], width=width),
        runs.verdict_page(ended(EXCEPTION, attempts=HISTORY, restarts=2), now=NOW, width=width),
    ]
    assert width is None or max(len(line) for page in pages for line in page.splitlines()) <= width
    golden(f"history{f'_{width}' if width else ''}", "\n\n----\n\n".join(pages))
    many = replace(went_on, attempts=tuple(replace(HISTORY[0], number=number) for number in range(30)))
    assert "20 attempts before these" in runs.status_page(many, None, None, RUN, NOW)


@pytest.mark.parametrize(
    ("newest", "words"),
    [
        (
            AttemptSummary(1, NOW - 90, None, "", None, "code/ckpt.pt"),
            "attempt 1 was offered code/ckpt.pt; nothing shows",
        ),
        (
            AttemptSummary(1, NOW - 5, None, "", None, "code/ckpt.pt", 1),
            "that the script loads it; its first step is 1",
        ),
        (
            AttemptSummary(1, NOW - 9, NOW - 5, "", None, "checkpoints/step_00000340"),
            "attempt 1 was offered step 340; nothing",
        ),
        (AttemptSummary(1, NOW - 5, None, "", None, "code/ckpt.pt"), ""),  # it may still report its first step
        (AttemptSummary(1, NOW - 90, None, "", "code/ckpt.pt", "code/ckpt.pt", 301), ""),
        (AttemptSummary(1, NOW - 90), ""),
    ],
)
def test_a_checkpoint_that_was_only_offered_is_warned_of_once(newest: AttemptSummary, words: str) -> None:
    state = replace(RUNNING, attempts=(HISTORY[0], newest), attempt=1, restarts=1)
    for page in (runs.status_page(state, None, None, RUN, NOW), runs.verdict_page(state, now=NOW)):
        assert page.count("was offered") == bool(words)
        assert words in page
    narrow = runs.status_page(state, None, None, RUN, NOW, width=80)
    assert max(len(line) for line in narrow.splitlines()) <= 80
    alone = replace(RUNNING, attempts=(newest,))  # of a run that was submitted with --resume
    assert words in runs.status_page(alone, None, None, RUN, NOW)


def test_status_table_of_nothing() -> None:
    assert runs.status_lines([]).startswith("no runs yet; start one: orch submit")


def test_status_pages() -> None:
    result = {"accuracy": 0.98314, "data": "mnist", "loss": 0.071234, "step": 1250, "seconds": 63.25}
    pages = [
        runs.status_page(RUNNING, BEAT, None, RUN, NOW),
        runs.status_page(ended(Verdict(Outcome.SUCCEEDED), attempt=1, restarts=1), BEAT, result, RUN, NOW),
        runs.status_page(ended(EXCEPTION), None, {**result, "stand_in": True}, RUN, NOW),
    ]
    golden("status_pages", "\n\n----\n\n".join(pages))


@pytest.mark.parametrize(
    ("name", "verdict", "restarts"), [("exception", EXCEPTION, 0), ("sigkill", KILLED, 2), ("lost_node", LOST, 0)]
)
def test_verdict_pages(name: str, verdict: Verdict, restarts: int) -> None:
    golden(f"verdict_{name}", runs.verdict_page(ended(verdict, restarts=restarts, attempt=restarts)))


def test_a_run_that_goes_on_has_no_verdict() -> None:
    assert runs.verdict_page(RUNNING).startswith("mnist_ddp-abc234 is running: it has not ended.")


def test_a_verdict_of_another_version_is_shown_too() -> None:
    verdict = Verdict.from_json({"outcome": "paused", "cause": "lunch", "reason": "gone to lunch"})
    assert "gone to lunch" in runs.verdict_page(ended(verdict))


@pytest.mark.parametrize("profile", PROFILES)
def test_plan_pages(profile: str) -> None:
    loaded = load("mnist_ddp", profile, cwd=ROOT)
    launch = plan(loaded.job, loaded.profile, "mnist_ddp-abc234", RunPaths(RUN, f"{RUN}/code", "/home/me/.orch/inputs",
                  "python3", "python3"))  # fmt: skip
    golden(f"plan_{profile}", plans.plan_page(launch, commands=True))


def test_differences_page() -> None:
    paths = RunPaths(RUN, f"{RUN}/code", "/home/me/.orch/inputs", "python3", "python3")
    names = ("local", "slurm-3x4")
    both = [load("mnist_ddp", name, cwd=ROOT) for name in names]
    rows = differences(*(plan(one.job, one.profile, "r-1", paths) for one in both))
    golden("differences", plans.differences_page(*names, rows))
    assert plans.differences_page("a", "b", []) == "a and b make the same plan"


@pytest.mark.parametrize(
    ("beat", "text"),
    [
        (None, ""),
        ({}, ""),
        ({"step": 3}, "step 3"),
        ({"step": None, "total": 10}, "step 0/10 (0 %)"),
        ({"step": 1427, "total": 1250, "eta": 0.1}, "step 1427/1250"),
        (BEAT, "step 340/1250 (27 %), loss 0.12345, 5,210 samples/s, ETA 1 min 02 s"),
        ({"step": 1, "loss": None, "rate": None, "eta": None}, "step 1"),
        ({"step": "x", "loss": "nan", "rate": [], "eta": {}}, "step 0"),
    ],
)
def test_progress(beat: dict[str, object] | None, text: str) -> None:
    assert runs.progress(beat) == text


def test_colours_do_not_move_the_columns() -> None:
    lines = [runs.status_line(RUNNING, BEAT, NOW)]
    coloured = runs.status_lines(lines, lambda text, colour: f"<{colour}>{text}</>")
    assert "<cyan>running</>" in coloured
    assert coloured.replace("<cyan>", "").replace("</>", "") == runs.status_lines(lines)


@pytest.mark.parametrize(
    ("beat", "said"),
    [
        ({"loss": 0.5, "metrics": {"train/loss": 1}}, "step 3, loss 0.5"),
        ({"metrics": {"loss": 0.25}}, "step 3, loss 0.25"),
        ({"metrics": {"acc": 1.0, "val_loss": 2.0, "train/loss": 0.1}}, "step 3, train/loss 0.1"),  # as orch plot
        ({"metrics": {"acc": 0.5}}, "step 3, acc 0.5"),
        ({"metrics": {"acc": "high"}}, "step 3"),
        ({"metrics": 4, "loss": 10**400}, "step 3"),
        ({}, "step 3"),
    ],
)
def test_the_progress_shows_the_metric_that_a_plot_shows(beat: dict[str, object], said: str) -> None:
    assert runs.progress({"step": 3, **beat}) == said
