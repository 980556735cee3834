"""The command line: exit codes, spellings, JSON, and that no mistake shows a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator.cli
from orchestrator.runs.state import Verdict
from orchestrator.runs.store import RunDir, create_run, retire, state_root
from tests.result import Result

ROOT = Path(__file__).parents[3]


@pytest.fixture
def orch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The command line within this process, through main(), which makes the exit codes."""
    monkeypatch.chdir(ROOT)

    def run(*argv: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["orch", *argv])
        with pytest.raises(SystemExit) as ended:
            orchestrator.cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Result(int(ended.value.code or 0), out, err)

    return run


def make_run(name: str, verdict: Verdict | None = None, log: str = "") -> RunDir:
    root = state_root()
    record = {"run_id": name, "name": "r", "kind": "local", "nnodes": 1, "hosts": ["localhost"],
              "profile_name": "local", "created": 1.0, "world_size": 2}  # fmt: skip
    run = create_run(root, name, record)
    run.append_event("submitted")
    if log:
        path = run.node(0) / "attempt_0" / "rank_0.log"
        path.parent.mkdir(parents=True)
        path.write_text(log)
    if verdict:
        run.write("verdict.json", {**verdict.to_json(), "ended": 2.0})
        retire(root, run)
    return run


# -- exit codes


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("submit",), 2, "say what to run"),
        (("nonsense",), 2, "No such command"),
        (("status", "--nonsense"), 2, "No such option"),
        (("submit", "hello"), 2, "--profile"),
        (("submit", "hello", "-p", "no-such-profile"), 2, "no-such-profile"),
        (("submit", "no-such-job", "-p", "local"), 2, "no-such-job"),
        (("submit", "hello", "-p", "local", "-f", "-d"), 2, "exclude each other"),
        (("submit", "hello", "-p", "local", "--set", "job.nmae=x"), 2, "did you mean 'name'"),
        (("submit", "hello", "-p", "locl"), 2, "local"),
        (("submit", "hello", "-p", "slurm-3x4", "--set", "profile.login=a@b@c"), 2, "'a@b@c' is not a host"),
        (("submit", "hello", "-p", "slurm-3x4", "--check"), 2, "--check belongs to --dry-run"),
        (("submit", "hello", "-p", "local", "--dry-run", "--check"), 2, "--check asks Slurm, and local is a profile"),
        (("plan", "hello", "-p", "local", "-p", "local", "-p", "local"), 2, "compare two at a time"),
        (("rm",), 2, "nothing to remove"),
        (("status", "nobody"), 102, "no run is called 'nobody'"),
        (("wait", "last"), 102, "there are no runs yet"),
        (("logs", "nobody"), 102, "no run is called"),
        (("cancel", "nobody"), 102, "no run is called"),
        (("why", "nobody"), 102, "no run is called"),
        (("submit", "hello", "-p", "local", "--resume", "nobody"), 102, "no run is called"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes(orch, argv: tuple[str, ...], code: int, words: str) -> None:
    done = orch(*argv)
    assert done.code == code
    assert words in done.err
    assert done.out == ""
    assert not (state_root() / "runs").exists()  # nothing was started


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict("succeeded"), 0),
        (Verdict("failed", "infra", "lost"), 100),
        (None, 101),
        (Verdict("cancelled"), 103),
    ],
)
def test_the_code_of_wait_is_the_outcome(orch, verdict: Verdict | None, code: int) -> None:
    make_run("r-111111", verdict)
    done = orch("wait", "r-1", "--timeout", "0", "--json")
    assert (done.code, done.json["run_id"]) == (code, "r-111111")


def test_an_ambiguous_prefix_names_the_runs(orch) -> None:
    make_run("r-111111")
    make_run("r-222222")
    done = orch("status", "r")
    assert (done.code, "r-111111, r-222222" in done.err) == (102, True)


def test_a_bug_is_a_sentence_and_shown_on_request(orch, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object, **__: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("orchestrator.operations.sweep.grouped", bug)
    done = orch("status")
    assert (done.code, done.err.splitlines()[0]) == (1, "orch: an error in orch itself: KeyError: 'x'")
    monkeypatch.setenv("ORCH_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["orch", "status"])
    with pytest.raises(KeyError):
        orchestrator.cli.main()


def test_ctrl_c_detaches(orch, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    make_run("r-111111")
    monkeypatch.setattr("orchestrator.operations.runs.wait", interrupt)
    done = orch("wait", "r-1")
    assert done.code == 130


def test_a_run_that_ended_is_not_cancelled_again(orch) -> None:
    make_run("r-111111", Verdict("succeeded"))
    done = orch("cancel", "r-1", "--json")
    assert (done.code, done.json["state"], done.json["proofs"]) == (0, "succeeded", [])


def test_logs_that_are_not_there_are_a_sentence(orch) -> None:
    make_run("r-111111")
    assert "no log: the run is pending" in orch("logs", "last").err
    done = orch("logs", "last", "--rank", "7")
    assert (done.code, "rank 7" in done.err) == (1, True)


# -- what is printed


@pytest.mark.parametrize("spelling", ["--dry-run", "--dryrun", "--dry_run"])
def test_every_spelling_of_a_dry_run_starts_nothing(orch, spelling: str) -> None:
    done = orch("submit", "hello", "-p", "local-2x2", spelling)
    assert done.code == 0, done.err
    assert "world size   4" in done.out
    assert "rank 3 differs in:" in done.out
    assert not (state_root() / "runs").exists()


def test_a_dry_run_as_json_is_the_plan_and_its_ranks(orch) -> None:
    found = orch("submit", "mnist_ddp", "-p", "slurm-3x4", "--dry-run", "--json").json
    assert [row["rank"] for row in found["ranks"]] == list(range(12))
    assert [task["node_rank"] for task in found["tasks"]] == [0, 1, 2]


def test_a_dry_run_shows_no_secret(orch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("API_KEY", "hunter2-hunter2")
    (tmp_path / "job.yaml").write_text("name: j\ncommand: [sh, -c, 'echo hunter2-hunter2']\nsecrets: [API_KEY]\n")
    for extra in ([], ["--json"]):
        done = orch("submit", str(tmp_path / "job.yaml"), "-p", "local", "--dry-run", *extra)
        assert done.code == 0, done.err
        assert "hunter2" not in done.out
        assert "API_KEY" in done.out


def test_two_profiles_are_compared(orch) -> None:
    done = orch("plan", "mnist_ddp", "-p", "local", "-p", "slurm-3x4")
    assert done.out.count("MASTER_PORT") == 2
    assert "samples per rank and step  48         8" in done.out
    both = orch("plan", "mnist_ddp", "-p", "local", "-p", "slurm-3x4", "--json").json
    assert [one["profile"]["name"] for one in both] == ["local", "slurm-3x4"]


@pytest.mark.parametrize(
    "argv",
    [
        ("status", "--json"), ("status", "r-1", "--json"), ("why", "r-1", "--json"), ("why", "r-2", "--json"),
        ("profiles", "--json"), ("schema", "job"), ("schema", "profile"), ("plan", "hello", "-p", "local", "--json"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_json_is_json_and_nothing_else(orch, argv: tuple[str, ...]) -> None:
    make_run("r-111111", Verdict("failed", "infra", "lost"))
    make_run("r-222222")
    done = orch(*argv)
    assert done.code == 0
    done.json  # noqa: B018 (that it can be read is the point)


def test_why_tells_the_verdict_or_that_there_is_none(orch) -> None:
    make_run("r-111111", Verdict("failed", "infra", "node 1 (b) was lost", hint="look at it"))
    make_run("r-222222")
    assert orch("why", "r-1").out.splitlines() == [
        "r-111111 failed (infra)", "", "  node 1 (b) was lost", "", "  hint: look at it",
    ]  # fmt: skip
    assert orch("why", "r-1", "--json").json["reason"] == "node 1 (b) was lost"
    assert "has not ended" in orch("why", "r-2").out


def test_status_lists_the_newest_and_all_live_ones(orch) -> None:
    make_run("old-live-1")
    for number in range(5):
        make_run(f"r-{number}", Verdict("succeeded"))
    assert [run["run_id"] for run in orch("status", "-n", "2", "--json").json] == ["r-4", "r-3", "old-live-1"]
    assert len(orch("status", "--all", "--json").json) == 6


def test_tail_and_ranks_of_logs(orch) -> None:
    make_run("r-111111", Verdict("succeeded"), "one\ntwo\nthree")
    assert orch("logs", "last").out == "one\ntwo\nthree\n"
    assert orch("logs", "last", "--tail", "1").out == "three\n"
    assert orch("logs", "last", "--tail", "0").out == ""
    assert orch("logs", "last", "--all", "--tail", "1").out == "n0/r0 three\n"


def test_finished_runs_are_removed_and_live_ones_are_not(orch) -> None:
    make_run("a-111111", Verdict("succeeded"))
    make_run("b-222222")
    done = orch("rm", "b")
    assert (done.code, "is pending" in done.err, "orch cancel b-222222" in done.err) == (2, True, True)
    assert orch("rm", "a").code == 0
    assert [run["run_id"] for run in orch("status", "--json").json] == ["b-222222"]


def test_help_lists_the_commands_in_the_order_of_use(orch) -> None:
    text = orch("--help").out
    places = [text.index(f"\n  {command} ") for command in ("submit", "status", "logs", "why", "cancel")]
    assert places == sorted(places)


def test_colours_only_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.cli.group import style

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert style("failed", "red") == "\x1b[31mfailed\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert style("failed", "red") == "failed"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert style("failed", "red") == "failed"


def test_a_reader_that_has_read_enough_is_no_error(tmp_path: Path) -> None:
    """`orch logs RUN | head`: a real pipe, closed after the first line."""
    make_run("r-111111", Verdict("succeeded"), "line\n" * 200_000)
    orch = subprocess.Popen(
        [sys.executable, "-m", "orchestrator.cli", "logs", "last"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, cwd=ROOT,
    )  # fmt: skip
    assert orch.stdout is not None
    assert orch.stderr is not None
    assert orch.stdout.readline() == b"line\n"
    orch.stdout.close()
    assert orch.stderr.read() == b""
    orch.stderr.close()
    assert orch.wait(30) in (0, 1)  # 1 is click's own answer to a closed pipe
