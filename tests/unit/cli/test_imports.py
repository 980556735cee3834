"""Looking at runs must not wait for what only a submit needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.runs.state import Verdict
from orchestrator.runs.store import create_run, retire

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
        [sys.executable, "-c", PROGRAM, *argv], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    return done.stdout, done.stderr.splitlines()[-1]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A state folder with one run that has ended and one that is going on."""
    for name in ("done-111111", "live-222222"):
        record = {"run_id": name, "name": name[:4], "kind": "local", "nnodes": 1, "hosts": ["localhost"],
                  "profile_name": "local", "created": 1.0}  # fmt: skip
        run = create_run(tmp_path, name, record)
        run.append_event("submitted")
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
    said, ended = loaded_by(*argv, home=home)
    assert ended == "code 0 loaded []"
    assert word in said
    if "--json" in argv:
        assert {run["run_id"]: run["state"] for run in json.loads(said)} == {
            "done-111111": "succeeded", "live-222222": "pending",
        }  # fmt: skip


def test_the_package_loads_nothing_until_a_name_is_used_and_looking_at_runs_nothing_heavy(home: Path) -> None:
    program = (
        "import sys, orchestrator as orch; print([name for name in sys.modules if name.startswith('orchestrator.')])\n"
        "run = orch.find('done'); print(run.status().state, *run.logs(), run.verdict.outcome, len(orch.list_runs()))\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "ORCH_HOME": str(home)},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["[]", "succeeded a line of the log succeeded 2", "[]"]


def test_the_agent_loads_no_torch_and_the_launcher_no_asyncio() -> None:
    program = (
        "import sys, orchestrator.node.{0}.{0}; print([m for m in ('torch', 'asyncio', 'numpy') if m in sys.modules])"
    )
    for name, expected in (("agent", "['asyncio']"), ("launcher", "[]")):
        done = subprocess.run(
            [sys.executable, "-c", program.format(name)], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.strip() == expected
