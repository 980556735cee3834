"""Looking at runs must not wait for what only a submit needs."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.outcome.verdict import Verdict
from orchestrator.runs.store import create_run, retire
from orchestrator.supervisor.background import supervisor_lock
from tests.events import event
from tests.patience import PATIENCE

HEAVY = ("torch", "numpy", "fabric", "submitit", "pydantic", "ruamel", "rich", "paramiko", "cloudpickle", "asyncio")
PROGRAM = f"""
import sys
from orchestrator.cli import main
sys.argv = ["orch", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    print("code", end.code, "loaded", [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""


def loaded_by(*argv: str, home: Path) -> tuple[str, str]:
    """(what was printed, how it ended and which heavy modules were loaded)."""
    environment = {**os.environ, "ORCH_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *argv],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
        env=environment,
    )
    return done.stdout, done.stderr.splitlines()[-1]


def counted(*argv: str, home: Path, without: tuple[str, ...]) -> tuple[int, str]:
    """(how many modules of ours were loaded, how it ended and which of those to do without were)."""
    ours = "len([name for name in sys.modules if name.startswith('orchestrator')])"
    program = PROGRAM.replace(repr(HEAVY), repr(without)).replace("print(", f"print({ours}, ", 1)
    done = subprocess.run(
        [sys.executable, "-c", program, *argv],
        capture_output=True, text=True, timeout=PATIENCE, check=True, env={**os.environ, "ORCH_HOME": str(home)},
    )  # fmt: skip
    count, _, ended = done.stderr.splitlines()[-1].partition(" ")
    return int(count), ended


def modules_loaded_by(*argv: str, home: Path) -> set[str]:
    """Run `orch` with these words, and return the names of orch's modules that it loaded."""
    program = PROGRAM.replace(f"for name in {HEAVY!r} if name in sys.modules", "for name in sys.modules")
    done = subprocess.run(
        [sys.executable, "-c", program, *argv],
        capture_output=True, text=True, timeout=PATIENCE, check=True, env={**os.environ, "ORCH_HOME": str(home)},
    )  # fmt: skip
    return set(re.findall(r"'(orchestrator[.\w]*)'", done.stderr.splitlines()[-1]))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A state folder with one run that has ended and one that is going on."""
    for name in ("done-111111", "live-222222"):
        record = {"run_id": name, "name": name[:4], "kind": "local", "nnodes": 1, "hosts": ["localhost"],
                  "profile_name": "local", "created": 1.0}  # fmt: skip
        run = create_run(tmp_path, name, record)
        run.append_event(event("submitted"))
        if name.startswith("done"):
            log = run.node(0) / "attempt_0" / "rank_0.log"
            log.parent.mkdir(parents=True)
            log.write_text("a line of the log\n")
            run.write("verdict.json", {**Verdict("succeeded").to_json(), "ended": 2.0})
            retire(tmp_path, run)
    return tmp_path


@pytest.mark.parametrize("argv", [("--help",), ("status",)], ids=" ".join)
def test_an_empty_home_loads_nothing_heavy(tmp_path: Path, argv: tuple[str, ...]) -> None:
    said, ended = loaded_by(*argv, home=tmp_path / "none")
    assert ended == "code 0 loaded []"
    assert said


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (("status",), "done-111111"),
        (("status", "done"), "succeeded"),
        (("status", "--json"), "live-222222"),
        (("logs", "done"), "a line of the log"),
        (("why", "done"), "succeeded"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_looking_at_runs_loads_nothing_heavy(home: Path, argv: tuple[str, ...], word: str) -> None:
    with supervisor_lock(home) if "--json" in argv else contextlib.nullcontext():  # none gives the live run a verdict
        said, ended = loaded_by(*argv, home=home)
    assert ended == "code 0 loaded []"
    assert word in said
    if "--json" in argv:
        assert {run["run_id"]: run["state"] for run in json.loads(said)} == {
            "done-111111": "succeeded", "live-222222": "pending",
        }  # fmt: skip


# zipfile is for an orch that has changed, cryptography and ssl for several nodes, threads for several machines, and the
# models for files that have changed.
SUBMIT_DOES_WITHOUT = (
    *HEAVY, "zipfile", "cryptography", "ssl", "concurrent.futures", "logging", "xml.etree",
    "orchestrator.specs.border", "orchestrator.specs.fields", "orchestrator.specs.documents.loader",
    "orchestrator.runs.reducer",
    "orchestrator.cli.follow", "orchestrator.supervisor.queue", "orchestrator.backends.environments",
)  # fmt: skip
OF_STATUS, OF_SUBMIT = 73, 137  # modules of ours, packages as well; a larger number is a longer wait


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The words that submit a job, whose files were read by a dry run."""
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (home, work):
        folder.mkdir(0o700)
    (work / "job.yaml").write_text("name: quick\ncommand: ['true']\n")
    (work / "profile.yaml").write_text("kind: local\nnodes: 1\nnproc_per_node: 1\n")
    words = ("submit", str(work / "job.yaml"), "-p", str(work / "profile.yaml"))
    monkeypatch.chdir(work)
    loaded_by(*words, "--dry-run", home=home)
    return words


def test_a_submit_of_files_that_were_read_before_loads_no_more_than_it_needs(
    job: tuple[str, ...], tmp_path: Path
) -> None:
    home, ends = tmp_path / "home", []
    for _ in range(2):  # the first makes the archive for the nodes
        ends.append(counted(*job, home=home, without=SUBMIT_DOES_WITHOUT))
        loaded_by("wait", "last", home=home)
    count, ended = ends[1]
    assert ended == "code 0 loaded []"
    assert count <= OF_SUBMIT


def test_a_table_of_runs_loads_few_modules(home: Path) -> None:
    with supervisor_lock(home):  # no supervisor gives the live run a verdict, which would be explained
        count, ended = counted("status", home=home, without=HEAVY)
    assert ended == "code 0 loaded []"
    assert count <= OF_STATUS


LOOKING = (
    ("status",), ("status", "done"), ("status", "--json"), ("logs", "done"), ("logs", "-f", "done"), ("why", "done"),
    ("events", "done"), ("events", "-f", "done"), ("wait", "done"), ("metrics", "done"), ("outputs", "done"),
    ("usage",), ("best",), ("plot", "done"), ("diff", "done", "live"), ("checkpoints", "done"),
)  # fmt: skip
MAY_START_IT = {"orchestrator.supervisor", "orchestrator.supervisor.background"}


@pytest.mark.parametrize("argv", LOOKING, ids=" ".join)
def test_a_command_that_only_looks_loads_of_the_supervisor_only_its_start(home: Path, argv: tuple[str, ...]) -> None:
    with supervisor_lock(home):
        loaded = modules_loaded_by(*argv, home=home)
    assert "orchestrator.runs.store" in loaded
    assert {name for name in loaded if name.startswith("orchestrator.supervisor")} <= MAY_START_IT


@pytest.mark.parametrize("module", ["orchestrator.cli.top.app", "orchestrator.web.app", "orchestrator.api"])
def test_what_shows_runs_loads_the_supervisor_only_when_it_acts(module: str) -> None:
    program = f"import sys, {module}; print([name for name in sys.modules if name.startswith('orchestrator.sup')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert set(ast.literal_eval(done.stdout)) <= MAY_START_IT


def test_the_package_loads_nothing_until_a_name_is_used_and_looking_at_runs_nothing_heavy(home: Path) -> None:
    program = (
        "import sys, orchestrator as orch; print([name for name in sys.modules if name.startswith('orchestrator.')])\n"
        "run = orch.find('done'); print(run.status().state, *run.logs(), run.verdict.outcome, len(orch.list_runs()))\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=PATIENCE, check=True, env={**os.environ, "ORCH_HOME": str(home)},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["[]", "succeeded a line of the log succeeded 2", "[]"]


def test_the_agent_loads_no_torch_and_the_launcher_no_asyncio() -> None:
    program = (
        "import sys, orchestrator.node.{0}.{0}; print([m for m in ('torch', 'asyncio', 'numpy') if m in sys.modules])"
    )
    for name, expected in (("agent", "['asyncio']"), ("launcher", "[]")):
        done = subprocess.run(
            [sys.executable, "-c", program.format(name)], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        assert done.stdout.strip() == expected
