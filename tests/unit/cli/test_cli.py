"""The command line: exit codes, spellings, JSON, and that no mistake shows a traceback."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

import orchestrator.cli
from orchestrator.cli.group import SECTIONS, Orch
from orchestrator.cli.group import orch as group
from orchestrator.cli.render import runs as render
from orchestrator.cli.sweeps import _cancelled_words
from orchestrator.errors import UsageError
from orchestrator.operations import tensorboard
from orchestrator.outcome.verdict import Verdict
from orchestrator.runs.files.metrics import names_of
from orchestrator.runs.state import RunState
from orchestrator.runs.store import RunDir, create_run, retire, state_root
from tests.events import event
from tests.patience import PATIENCE
from tests.result import Result

ROOT = Path(__file__).parents[3]


@pytest.fixture
def orch(in_process: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command line within this process, in the repository; no supervisor gives the runs that are made a verdict."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("orchestrator.supervisor.background.start_supervisor", lambda *_, **__: None)
    return in_process


def make_run(name: str, verdict: Verdict | None = None, log: str = "") -> RunDir:
    root = state_root()
    record = {"run_id": name, "name": "r", "kind": "local", "nnodes": 1, "hosts": ["localhost"],
              "profile_name": "local", "created": 1.0, "world_size": 2}  # fmt: skip
    run = create_run(root, name, record)
    run.append_event(event("submitted"))
    if log:
        path = run.node(0) / "attempt_0" / "rank_0.log"
        path.parent.mkdir(parents=True)
        path.write_text(log)
    if verdict:
        run.write("verdict.json", {**verdict.to_json(), "ended": 2.0})
        retire(root, run)
    return run


# -- the help, and other tools' words


@pytest.mark.parametrize("name", [name for _, names in SECTIONS.values() for name in names])
def test_the_help_fits_80_columns_and_each_command_has_an_example(
    orch, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    whole = orch("--help").out
    summary = next(line for line in whole.splitlines() if line.startswith(f"  {name} "))
    assert summary.endswith(".")
    assert not summary.endswith("..."), f"shorten the first sentence of the help of {name}: it does not fit on a line"
    assert max(map(len, whole.splitlines())) <= 80
    assert "\n  Example: " in orch(name, "--help").out


@pytest.mark.parametrize("name", sorted({*Orch.sections, *Orch.unlisted} - {"shell"}))  # which passes options on
def test_click_parses_each_command(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert isinstance(command, click.Command)
    with pytest.raises(click.NoSuchOption, match="--no-such-option"):
        command.make_context(name, ["--no-such-option"])


@pytest.mark.parametrize("alias", ["ls", "ps", "describe"])
def test_other_tools_names_of_status(orch, alias: str) -> None:
    make_run("r-111111", Verdict("succeeded"))
    assert orch(alias).out == orch("status").out
    assert "r-111111  succeeded" in orch(alias, "last").out


def test_clean_is_answered_with_gc_and_rm(orch) -> None:
    done = orch("clean")
    assert (done.code, "orch gc" in done.err, "orch rm RUN" in done.err) == (2, True, True)


def test_a_profile_without_its_option_is_answered_with_the_whole_line(orch) -> None:
    assert orch("submit", "train.yaml", "local").err == (
        "orch: the profile 'local' is given without -p\n  orch submit train.yaml -p local\n"
    )
    assert orch("submit", "train.yaml", "nonsense").err.startswith("orch: submit: unexpected argument 'nonsense'\n")


def test_init_reads_a_batch_script_and_says_the_next_step(
    orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "job.sbatch").write_text(
        "#SBATCH -N 2 -p gpu\nsrun torchrun --nnodes 2 --nproc_per_node 4 train.py --lr 1\n"
    )
    monkeypatch.chdir(tmp_path)
    done = orch("init", "mine", "job.sbatch")
    assert done.err == "wrote mine.yaml\nwrote cluster_profiles/mine.yaml\nnext: orch submit mine.yaml -p mine -f\n"
    assert "world size   8" in orch("plan", "mine.yaml", "-p", "mine").out
    assert orch("init", "other", "nothing.sbatch").err.startswith("orch: nothing.sbatch can't be read: No such file")
    assert orch("init", "job.sbatch").err.startswith("wrote job.yaml\n")
    os.mkfifo(tmp_path / "pipe.sh")
    assert orch("init", "pipe.sh").err.startswith("orch: pipe.sh can't be read: it is a pipe")
    (tmp_path / "open.sh").write_text("torchrun 'train.py\n")
    assert orch("init", "x", "bash", "open.sh").err.startswith("orch: open.sh, line 1: the quote ' is not closed")


# -- exit codes


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("submit",), 2, "missing JOB (or --from RUN)"),
        (("nonsense",), 2, "there is no command 'nonsense'"),
        (("status", "--nonsense"), 2, "status has no option --nonsense"),
        (("submit", "hello", "-p", "local", "--set", "lr=1"), 2, "orch submit JOB -- --lr 0.1"),
        (("submit", "hello", "-p", "local", "--set", "global_bath=1"), 2, "did you mean --set global_batch="),
        (("run",), 2, "as in: orch run -- train.py"),
        (("run", "-p", "local", "--", "trai.py"), 2, "command line: script: there is no 'trai.py' in the code folder"),
        (("run", "-p", "local", "--", "torchrun", "--nproc_per_node", "0", "x.py"), 2, "is not a number of at least 1"),
        (("run", "--lr", "1", "train.py"), 2, "run has no option --lr"),
        (("run", "-p", "local", "--", "mpirun", "train.py"), 2, "give the srun, torchrun or python part"),
        (("submit", "jobs/mnist.py"), 2, "orch run -- jobs/mnist.py"),
        (("submit", "hello", "-p", "no-such-profile"), 2, "no-such-profile"),
        (("submit", "no-such-job", "-p", "local"), 2, "no-such-job"),
        (("submit", "hello", "-p", "local", "-f", "-d"), 2, "can't be used together"),
        (("submit", "hello", "-p", "local", "--set", "job.nmae=x"), 2, "did you mean 'name'"),
        (("submit", "hello", "-p", "locl"), 2, "local"),
        (("submit", "hello", "-p", "slurm-3x4", "--set", "profile.login=a@b@c"), 2, "'a@b@c' is not a host"),
        (("submit", "hello", "-p", "slurm-3x4", "--check"), 2, "--check needs --dry-run"),
        (
            ("submit", "hello", "-p", "local", "--dry-run", "--check"),
            2,
            "--check needs a scheduler, and profile local is",
        ),
        (("plan", "hello", "-p", "local", "-p", "local", "-p", "local"), 2, "compare two at a time"),
        (("rm",), 2, "name the runs to remove"),
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
    done = orch("status", "r-")
    assert (done.code, "r-111111, r-222222" in done.err) == (102, True)


def test_a_bug_is_a_sentence_and_shown_on_request(orch, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object, **__: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("orchestrator.looking.run.grouped", bug)
    done = orch("status")
    assert (done.code, done.err.splitlines()[0]) == (1, "orch: an error in orch itself: KeyError: 'x'")
    monkeypatch.setenv("ORCH_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["orch", "status"])
    with pytest.raises(KeyError):
        orchestrator.cli.main()


def test_a_full_disk_is_no_bug_and_keeps_nobody_from_looking(orch, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/home/me/.orch/x")

    make_run("r-111111")
    monkeypatch.setattr("orchestrator.supervisor.background.supervisor_lock", full)
    assert "r-111111" in orch("status").out
    monkeypatch.setattr("orchestrator.looking.run.grouped", full)
    done = orch("status")
    assert (done.code, done.err.splitlines()[0]) == (1, "orch: /home/me/.orch/x: No space left on device")
    assert "df -i" in done.err


def test_ctrl_c_detaches(orch, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    make_run("r-111111")
    monkeypatch.setattr("orchestrator.looking.run.wait", interrupt)
    done = orch("wait", "r-1")
    assert done.code == 130


def test_a_run_that_ended_is_not_cancelled_again(orch) -> None:
    make_run("r-111111", Verdict("succeeded"))
    done = orch("cancel", "r-1", "--json")
    assert (done.code, done.json["state"], done.json["proofs"]) == (0, "succeeded", [])


def test_logs_that_are_not_there_are_a_sentence(orch) -> None:
    make_run("r-111111")
    assert "no log yet: the run is pending" in orch("logs", "last").err
    done = orch("logs", "last", "--rank", "7")
    assert (done.code, done.err.splitlines()[0]) == (1, "orch: no rank 7: the run has ranks 0-1")
    done = orch("logs", "last", "--node", "7")
    assert (done.code, done.err.splitlines()[0]) == (1, "orch: no node 7: the run has node 0 alone")


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
    assert [(node["host"], node["ranks"]) for node in found["ranks"]["nodes"]] == [
        ("slurm node 0", [0, 4]), ("slurm node 1", [4, 8]), ("slurm node 2", [8, 12]),
    ]  # fmt: skip
    assert found["ranks"]["environment"]["RANK"] == "0"
    assert {"RANK", "LOCAL_RANK", "GROUP_RANK"} < set(found["ranks"]["own"])
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
    page = orch("why", "r-1").out.splitlines()
    assert page[:5] == ["r-111111 failed (infra)", "", "  node 1 (b) was lost", "", "  hint: look at it"]
    assert page[-2:] == ["  next       orch does not start this run again", "  go on      orch submit --from r-111111"]
    assert orch("why", "r-1", "--json").json["reason"] == "node 1 (b) was lost"
    assert "has not ended" in orch("why", "r-2").out


def test_a_table_makes_no_json_of_the_runs_and_json_no_table(orch, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run("done-111111", Verdict("succeeded"))
    made: list[str] = []
    to_json, line = RunState.to_json, render.status_line
    monkeypatch.setattr(RunState, "to_json", lambda state: made.append("json") or to_json(state))
    monkeypatch.setattr(render, "status_line", lambda *given: made.append("line") or line(*given))
    assert "done-111111" in orch("status").out
    assert "done-111111" in orch("status", "--json").out
    assert made == ["line", "json"]


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


def test_nodes_of_all_profiles_go_on_where_one_cannot_be_read(orch, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    backend = SimpleNamespace(holdings=lambda profile: [{"host": profile.name, "spare": False}])
    monkeypatch.setattr("orchestrator.operations.doctor.backend_of", lambda profile: backend)
    folder = tmp_path / "orch/profiles"
    folder.mkdir(parents=True)
    monkeypatch.setattr("orchestrator.specs.documents.lookup.users_profiles", lambda: folder)
    (folder / "here.yaml").write_text("{kind: local}")
    elsewhere = tmp_path / "project"
    elsewhere.mkdir()
    with monkeypatch.context() as moved:
        moved.setattr(Path, "cwd", lambda: elsewhere)
        assert "you have no profile of other machines" in orch("nodes").err
        (folder / "lab.yaml").write_text("{kind: ssh, hosts: [n1]}")
        (folder / "torn.yaml").write_text("{kind: ssh, host: [n1]}")
        done = orch("nodes", "--json")
    assert (done.code, done.json["lab"]) == (1, [{"host": "lab", "spare": False}])
    assert list(done.json) == ["lab", "torn"]
    assert "torn.yaml:1:" in done.json["torn"]["problem"]


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
    assert orch.wait(PATIENCE) in (0, 1)  # 1 is click's own answer to a closed pipe


def test_events_are_shown_in_the_order_of_time_and_chosen_by_node_and_kind(orch) -> None:
    run = make_run("r-abc234", Verdict("succeeded"))  # of a live run a supervisor would be started
    run.node(0).mkdir(parents=True, exist_ok=True)
    run.append_event(event("submitted"))
    start = run.events()[-1].time
    of_node = [
        {"kind": kind, "seq": seq, "time": start + after, "mono": float(seq), "node": 0}
        for seq, (kind, after) in enumerate([("agent_started", 1.0), ("restart", 3.0)])
    ]
    (run.node(0) / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in of_node))
    kinds = [line.split()[-1] for line in orch("events", "r-abc234").out.splitlines()]
    assert kinds[-3:] == ["submitted", "agent_started", "restart"]
    assert [line.split()[-1] for line in orch("events", "r-abc234", "--kind", "restart").out.splitlines()] == [
        "restart"
    ]
    printed = orch("events", "r-abc234", "--node", "0", "--json").out.splitlines()
    assert [json.loads(line)["kind"] for line in printed] == ["agent_started", "restart"]
    wrong = orch("events", "r-abc234", "--kind", "restrat")
    assert (wrong.code, "Traceback" in wrong.err) == (2, False)


# -- odd shells


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_standard_stream_is_dev_null(closed: str) -> None:
    line = f"exec {sys.executable} -m orchestrator.cli profiles {closed}"
    done = subprocess.run(["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("limit", ["0", "0.01", "0s"])
def test_wait_takes_a_duration(orch, limit: str) -> None:
    make_run("r-1")
    assert orch("wait", "r-1", "--timeout", limit).code == 101


@pytest.mark.parametrize("limit", ["-1", "nan", "soon"])
def test_wait_refuses_what_is_no_duration(orch, limit: str) -> None:
    make_run("r-1")
    done = orch("wait", "r-1", "--timeout", limit)
    assert (done.code, done.err.startswith("orch: --timeout: ")) == (2, True)


def test_the_default_profile_is_named_unless_the_command_is_refused(orch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORCH_PROFILE", raising=False)
    refused = orch("submit", "jobs/hello.yaml", "--set", "job.foo=1")
    assert refused.err.startswith("orch: --set job.foo=1: 'foo' is not a field; the nearest are ")
    assert orch("submit", "jobs/hello.yaml", "--dry-run").err.startswith("2 ranks of profile local (")


# -- words


@pytest.mark.parametrize(
    ("verdict", "words", "command"),
    [
        (Verdict("failed", "infra", "lost"), "the run has no log on this machine; the run failed", "why"),
        (Verdict("cancelled"), "the run has no log on this machine; the run was cancelled", "why"),
        (None, "the run has no log yet: the run is pending", "status"),
    ],
)
def test_a_run_without_a_log_says_how_it_ended(orch, verdict: Verdict | None, words: str, command: str) -> None:
    make_run("r-111111", verdict)
    assert orch("logs", "r-1").err == f"orch: {words}\n  see: orch {command} r-111111\n"


def test_logs_knows_the_short_form_of_rank(orch) -> None:
    make_run("r-111111", Verdict("succeeded"), log="hello\n")
    assert "hello" in orch("logs", "r-1", "-r", "0").out


def test_a_run_that_another_machine_looks_after_is_named_with_that_machine(orch) -> None:
    pointer = {"run_id": "r-111111", "host": "gate", "orch": "/opt/orch", "time": 1.0, "name": "r"}
    folder = state_root() / "elsewhere"
    folder.mkdir(parents=True)
    (folder / "r-111111.json").write_text(json.dumps(pointer))
    for command in ("pull", "diff"):
        done = orch(command, "r-1", *(["r-1"] if command == "diff" else []))
        assert done.err == (
            "orch: gate supervises run r-111111, and the run's files are on that machine\n"
            "  run this command on that machine, for example: ssh gate /opt/orch pull r-111111\n"
        )


def test_a_run_that_another_machine_looks_after_is_named_with_the_way_there(orch) -> None:
    way = {"host": "me@gate:2222", "orch": "orch", "ssh_command": "ssh -p 2222 me@gate"}
    folder = state_root() / "elsewhere"
    folder.mkdir(parents=True)
    (folder / "r-111111.json").write_text(json.dumps(way))
    assert "for example: ssh -p 2222 me@gate orch pull r-111111\n" in orch("pull", "r-1").err


def test_runs_that_ended_by_themselves_are_not_counted_as_cancelled() -> None:
    asked = [RunState("r", "r", "local", 1.0, state) for state in ("cancelled", "cancelled", "succeeded", "running")]
    assert _cancelled_words(5, asked, going=1) == "cancelled 2 runs, 2 had already finished"
    assert _cancelled_words(1, asked[:1], going=0) == "cancelled 1 run"


def test_init_refuses_a_script_that_is_not_there(orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    done = orch("init", "mine", "torchrun", "trian.py")
    assert (done.code, done.err) == (
        2, "orch: trian.py: there is no such file in this folder\n  did you mean train.py?\n",
    )  # fmt: skip
    assert not (tmp_path / "mine.yaml").exists()
    assert orch("init", "mine", "torchrun", "train.py").code == 0
    assert orch("init", "other", "python", "-m", "pkg.train").code == 0


def test_a_misspelt_metric_is_answered_with_the_nearest(orch) -> None:
    run = make_run("r-111111", Verdict("succeeded"))
    lines = [{"step": step, "loss": 1.0, "accuracy": 0.5, "time": 1.0} for step in (1, 2)]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "did you mean loss? they have: " in orch("plot", "r-1", "los").err


def test_export_names_its_formats(orch) -> None:
    done = orch("export", "last")
    assert (done.code, done.err) == (2, (
        "orch: export: invalid value for 'FORMAT': 'last' is not one of 'torchrun', 'accelerate', 'safetensors'\n"
        "  usage: orch export [OPTIONS] FORMAT RUN\n"
    ))  # fmt: skip


def test_best_offers_what_says_how_good_a_run_is_before_bookkeeping() -> None:
    found = [{"attempt": 0.0, "epoch": 3.0, "accuracy": 0.5, "time": 1.0, "loss": 1.0}]
    assert names_of(found) == "they have: accuracy, loss, attempt, epoch, time"


def test_a_missing_tensorboard_names_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda _: None)
    monkeypatch.setattr(tensorboard.shutil, "which", lambda _: None)
    with pytest.raises(UsageError, match="neither in orch's environment nor on PATH") as refused:
        tensorboard.program()
    assert f"{sys.executable} -m pip install tensorboard" in str(refused.value.hint)


def test_the_note_on_encryption_appears_once(orch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text("kind: ssh\nhosts: [n1, n2]\n")
    monkeypatch.setattr("orchestrator.operations.doctor.examine", lambda *_, **__: [])
    shown = ["nor authenticated" in orch("doctor", "-p", str(tmp_path / "lab.yaml")).err for _ in range(3)]
    assert shown == [True, False, False]
