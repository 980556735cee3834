"""The public names, and what a Run tells of a folder; real runs are in tests/local/test_api.py."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest

import orchestrator
from orchestrator import errors
from orchestrator.api import Run, RunFailedError, WaitTimeoutError, find, list_runs, submit
from orchestrator.outcome.verdict import Verdict
from orchestrator.runs.state import RunState
from orchestrator.runs.store import create_run, retire, state_root
from orchestrator.version import __version__

TRACEBACK = "Traceback (most recent call last):\n  ...\nValueError: no\n"
FAILED = Verdict(
    "failed", "user_error", "rank 1 on node 0 (n1) ended with exit code 1: ValueError: no", rank=1,
    error={"type": "ValueError", "message": "no", "traceback": TRACEBACK}, hint="say yes",
)  # fmt: skip


def a_run(name: str, verdict: Verdict | None = None) -> Run:
    """A run of this state folder: with its verdict, or about to be submitted by nobody."""
    record = {"run_id": name, "name": name[:4], "kind": "local", "nnodes": 1, "hosts": ["localhost"],
              "profile_name": "local", "created": 1.0}  # fmt: skip
    run = create_run(state_root(), name, record)
    for rank in (0, 1):
        log = run.node(0) / "attempt_0" / f"rank_{rank}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"first of {rank}\nsecond")
    if verdict is not None:
        run.write("verdict.json", {**verdict.to_json(), "ended": 2.0})
        retire(state_root(), run)
    return Run(run.path)


def test_the_public_names_are_there_and_no_others() -> None:
    assert set(orchestrator.__all__) <= set(dir(orchestrator))
    assert all(getattr(orchestrator, name).__doc__ for name in orchestrator.__all__)
    assert orchestrator.errors is errors
    assert orchestrator.__version__ == __version__  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="module 'orchestrator' has no attribute 'submti'"):
        orchestrator.submti  # type: ignore[attr-defined]  # noqa: B018


def test_a_run_that_has_ended() -> None:
    run = a_run("good-111111", Verdict("succeeded"))
    (run.folder / "result.json").write_text('{"accuracy": 0.9}')
    state = run.status()
    assert isinstance(state, RunState)
    assert (run.id, repr(run), state.state, run.verdict) == (
        "good-111111", "Run('good-111111')", "succeeded", Verdict("succeeded"),
    )  # fmt: skip
    assert run.wait() is run
    assert run.result() == {"accuracy": 0.9}
    assert run.cancel() == ()
    assert run.checkpoints() == []
    assert list(run.logs()) == list(run.logs(follow=False)) == ["first of 0", "second"]
    assert list(run.logs(1)) == ["first of 1", "second"]
    assert list(run.logs(7)) == []


def test_a_run_without_a_result() -> None:
    assert a_run("none-111111", Verdict("succeeded")).result() is None


def test_a_failed_run_raises_its_verdict() -> None:
    run = a_run("poor-111111", FAILED)
    assert run.wait().verdict == FAILED
    with pytest.raises(RunFailedError) as caught:
        run.result()
    assert caught.value.verdict == FAILED
    assert caught.value.run_id == run.id
    assert str(caught.value) == f"run poor-111111 failed: {FAILED.reason}\nsay yes\n\n{TRACEBACK.strip()}"
    assert isinstance(caught.value, errors.OrchError)


def test_a_cancelled_run_has_no_result() -> None:
    with pytest.raises(RunFailedError, match=r"^run gone-111111 was cancelled$"):
        a_run("gone-111111", Verdict("cancelled")).result()


def test_a_failure_without_a_traceback_shows_the_last_lines() -> None:
    error = RunFailedError("it", Verdict("failed", "user_error", "it ended", tail=("one", "two")))
    assert str(error) == "run it failed: it ended\n\none\ntwo"


def test_waiting_in_vain_is_a_timeout() -> None:
    error = WaitTimeoutError("run it is running after 1 s", "wait again")
    assert isinstance(error, TimeoutError)
    assert isinstance(error, errors.OrchError)
    assert str(error) == "run it is running after 1 s\nwait again"


def test_runs_are_found_newest_first() -> None:
    runs = [a_run(name, Verdict("succeeded")) for name in ("aaaa-111111", "bbbb-111111", "bbbb-222222")]
    assert list_runs() == runs[::-1]
    assert list_runs(limit=1) == [find("last")] == [runs[2]]
    assert len(list_runs(None)) == 3
    assert find("aaaa") == runs[0]
    assert find("bbbb") == runs[2]  # a name means its newest run
    for reference in ("bbbb-", "cccc", ""):
        with pytest.raises(errors.RunNotFoundError):
            find(reference)


def test_nothing_is_found_in_an_empty_folder() -> None:
    assert list_runs() == []


def test_a_run_can_be_kept_in_a_set_and_in_a_file() -> None:
    run = a_run("kept-111111", Verdict("succeeded"))
    assert {run, find("kept")} == {run}
    assert pickle.loads(pickle.dumps(run)) == run  # noqa: S301 (of this very line)


def test_what_can_not_be_submitted_is_refused_before_anything_is_there(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [echo]\n")
    job = tmp_path / "job.yaml"
    with pytest.raises(errors.UsageError, match=r"sets: job.args is a set, which a job or a profile can't hold"):
        submit(job, "local", sets={"job.args": {1}})
    with pytest.raises(errors.UsageError, match=r"did you mean --set job.args=...\?"):
        submit(job, "local", sets={"args": ["hello"]})
    with pytest.raises(errors.SpecError, match="nproc_per_node"):
        submit(job, "local", nproc_per_node="many")
    with pytest.raises(errors.UsageError, match="NO SUCH NAME is not the name of a variable"):
        submit(job, "local", env={"NO SUCH NAME": "1"})
    with pytest.raises(errors.RunNotFoundError):
        submit(job, "local", after="none-111111")
    with pytest.raises(errors.UsageError, match="no checkpoint"):
        submit(job, "local", resume=a_run("bare-111111", Verdict("succeeded")))
    (tmp_path / "far.yaml").write_text("kind: ssh\nhosts: [n1]\nsupervisor: me@always\nworkdir: /tmp/orch\n")
    with pytest.raises(errors.UsageError, match="me@always supervises the runs of profile far"):
        submit(job, tmp_path / "far.yaml")
    assert [run.id for run in list_runs()] == ["bare-111111"]


def test_it_works_inside_of_a_running_loop() -> None:
    run = a_run("loop-111111", Verdict("succeeded"))

    async def main() -> tuple[Run, Run, list[str]]:
        return run.wait(), await asyncio.to_thread(run.wait), await asyncio.to_thread(lambda: list(run.logs()))

    assert asyncio.run(main()) == (run, run, ["first of 0", "second"])
