"""`orch drill` on this machine: each fault, what followed, and that a broken promise is named."""

from __future__ import annotations

import signal
import subprocess

import pytest

from orchestrator.node.system.processes import marked
from tests.patience import PATIENCE

from .conftest import Orch

SHORT = ("--set", 'job.args=["60", "0.2"]')


def names_left(orch: Orch) -> list[str]:
    """What drills have left of themselves: runs, and live marks."""
    return [path.name for name in ("runs", "live") for path in (orch.home / name).iterdir()]


@pytest.mark.full(
    "tests/local/test_drill.py::test_what_was_promised_and_did_not_come_is_named_and_the_run_is_kept",
    "tests/local/test_failures.py::test_a_killed_rank_is_restarted_from_the_checkpoint",
    "tests/local/test_failures.py::test_a_lost_launcher_is_started_again",
    "tests/local/test_failures.py::test_kill_9_leaves_no_rank",
    "tests/local/test_results.py::test_a_supervisor_killed_between_is_followed_by_one_that_tells",
)
def test_each_kill_is_followed_by_what_is_promised(orch: Orch) -> None:
    kinds = ("rank", "launcher", "agent", "supervisor")
    two = ("--set", "profile.nproc_per_node=1")
    done = orch(
        "drill",
        "local-2x2",
        *two,
        *SHORT,
        *(word for kind in kinds for word in ("--kill", kind)),
        "--json",
        timeout=2.5 * PATIENCE,
    )
    assert done.code == 0, done.out + done.err
    reports = {report["promise"]["fault"]: report for report in done.json}
    assert {kind: reports[kind]["account"]["restarts"] for kind in kinds} == {
        "rank": 1, "launcher": 1, "agent": 0, "supervisor": 0,
    }  # fmt: skip
    assert reports["rank"]["injection"]["rank"] == 1
    assert reports["rank"]["account"]["said"].startswith("rank 1 on node 1 (")
    assert reports["rank"]["account"]["went_on_from"] >= 10
    assert reports["agent"]["account"]["outcome"] == "failed"
    assert "node 1 (" in reports["agent"]["account"]["said"]
    assert reports["supervisor"]["account"]["ledger"][0] == 60
    assert names_left(orch) == []


def test_what_was_promised_and_did_not_come_is_named_and_the_run_is_kept(orch: Orch) -> None:
    """Without a retry, a rank that was killed ends the run."""
    done = orch("drill", "local", *SHORT, "--set", "job.retry.infra=0", "--kill", "rank")
    assert done.code == 1
    assert "not as promised: the run ended as failed, and not as succeeded" in done.out
    assert "not as promised: the run was started again 0 times, and not 1" in done.out
    (run,) = (orch.home / "runs").iterdir()
    assert f"kept: orch why {run.name}" in done.out
    assert marked(run.name) == []


def test_an_interrupt_ends_the_drills_run(orch: Orch) -> None:
    with subprocess.Popen(
        orch.argv("drill", "local", "--kill", "rank", "--set", 'job.args=["40", "60"]'),  # it has no checkpoint
        cwd=orch.cwd, env=orch.environment(), stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 (before exec)
    ) as command:  # fmt: skip
        assert command.stderr is not None
        run_id = command.stderr.readline().split()[3]
        command.send_signal(signal.SIGINT)
        assert command.wait(PATIENCE) == 130
    assert (marked(run_id), names_left(orch)) == ([], [])


def test_a_supervisor_of_other_runs_is_left_alone(orch: Orch) -> None:
    other = orch.submit("hello", "-p", "local", "--set", 'job.command=["sleep", "600"]', "--set", "job.script=null")
    done = orch("drill", "local", "--kill", "supervisor")
    assert (done.code, f"it also supervises {other.run_id}" in done.err) == (2, True), done.err
    assert names_left(orch) == [other.run_id, other.run_id]  # nothing was started


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--freeze", "n2"), "needs a host and a time"),
        (("--freeze", "n2:soon"), "'soon' is not a duration"),
        (("--freeze", "n2:0s"), "needs a time longer than 0 s"),
        (("--kill", "everything"), "is not one of"),
    ],
)
def test_what_can_not_be_done_is_refused_before_anything_is_started(
    orch: Orch, words: tuple[str, ...], said: str
) -> None:
    done = orch("drill", "local", *words)
    assert (done.code, said in done.err) == (2, True), done.err
    assert not (orch.home / "runs").exists()
