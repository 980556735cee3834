"""Two runs held against each other."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.render.results import comparison_page
from orchestrator.operations.diff import Comparison, compare
from orchestrator.runs.files.code_snapshot import take
from orchestrator.runs.state import RunState, RunStatus
from orchestrator.runs.store import RunDir
from tests.events import event

JOB = {"name": "r", "args": ["--lr", "1"], "env": {"A": "visible"}, "training": None, "checkpoint": {"keep": 3}}


def made(tmp_path: Path, name: str, code: dict[str, str], env: dict[str, str], job: dict[str, Any]) -> RunDir:
    run, source = RunDir(tmp_path / name), tmp_path / f"{name}-source"
    run.path.mkdir()
    for path, text in code.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    listing = take(source, run.path / "code", ".orchignore", 1 << 20).listing
    run.write("code.json", {"files": listing})
    run.write("run.json", {"run_id": name, "orch": "0.1.0", "job": {**JOB, **job}, "profile": {"nodes": 1}})
    run.write("plan.json", {"tasks": [{"env": env}], "secret_names": ["KEY"]})
    run.append_event(event("snapshot", files=1, bytes=1, sha256=name, git="c0ffee", dirty=False))
    return run


def state(name: str, outcome: RunStatus = RunStatus.SUCCEEDED, **values: Any) -> RunState:
    return dataclasses.replace(RunState(name, "r", "local", 1000.0, outcome, world_size=4), **values)


def compared(tmp_path: Path) -> Comparison:
    one = made(tmp_path, "one", {"a.py": "x = 1\ny = 2\n", "old.py": "", "same.py": "s"}, {"A": "v1", "B": "b"}, {})
    other = made(
        tmp_path, "two", {"a.py": "x = 1\ny = 3\n", "new/b.py": "", "same.py": "s"}, {"A": "v2", "C": "c"},
        {"args": ["--lr", "2"], "checkpoint": {"keep": 5}},
    )  # fmt: skip
    (one.path / "result.json").write_text('{"accuracy": 0.5}')
    (other.path / "result.json").write_text('{"accuracy": 0.75}')
    return compare(one, other, (state("one"), state("two", RunStatus.FAILED, started=1.0, ended=3.0)))


def test_what_changed(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert [(row.section, row.what, row.one, row.other) for row in found.rows] == [
        ("job", "args", "['--lr', '1']", "['--lr', '2']"),
        ("job", "checkpoint.keep", "3", "5"),
        ("env", "A", "set", "another value"),
        ("env", "B", "set", "-"),
        ("env", "C", "-", "set"),
        ("code", "sha256", "one", "two"),
        ("result", "state", "succeeded", "failed"),
        ("result", "seconds from start to end", "-", "2"),
        ("result", "accuracy", "0.5", "0.75"),
    ]
    assert [(file.path, file.change) for file in found.files] == [
        ("a.py", "changed"), ("new", "added"), ("new/b.py", "added"), ("old.py", "removed")
    ]  # fmt: skip
    assert found.files[0].diff == ("--- a.py", "+++ a.py", "@@ -1,2 +1,2 @@", " x = 1", "-y = 2", "+y = 3")
    page = comparison_page(found)
    assert "+y = 3" in page
    assert "v1" not in page + str(found.to_json())  # values of variables stay out


def test_a_run_does_not_differ_from_itself(tmp_path: Path) -> None:
    run = made(tmp_path, "one", {"a.py": "x"}, {}, {})
    found = compare(run, run, (state("one"), state("one")))
    assert (found.rows, found.files) == ((), ())
    assert "do not differ" in comparison_page(found)


def test_long_binary_and_rewritten_files_are_named_only(tmp_path: Path) -> None:
    one = made(tmp_path, "one", {"long.py": "a\n" * 500, "own.py": "1", "bin": "\0" * 10}, {}, {})
    other = made(tmp_path, "two", {"long.py": "b\n" * 500, "own.py": "2", "bin": "\0" * 11}, {}, {})
    (other.path / "code/own.py").write_text("rewritten by the run itself")
    diffs = {file.path: file.diff for file in compare(one, other, (state("one"), state("two"))).files}
    assert len(diffs["long.py"]) == 41
    assert diffs["long.py"][-1].startswith("... ")
    assert diffs["own.py"] == ()


def test_runs_with_nothing_but_a_folder(tmp_path: Path) -> None:
    runs = [RunDir(tmp_path / name) for name in "ab"]
    for run in runs:
        run.path.mkdir()
    assert compare(runs[0], runs[1], (state("a"), state("b"))).rows == ()


def test_no_secret_of_either_run_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "canary-of-the-shell")
    one = made(tmp_path, "one", {"a.py": "key = 1\nprint('canary-of-two')\n"}, {"HF_TOKEN": "canary-of-one"}, {})
    other = made(
        tmp_path, "two", {"a.py": "key = 2\n"}, {"HF_TOKEN": "canary-of-two"},
        {"args": ["--api-key", "canary-arg", "--lr", "2"], "training": {"hub_token": "canary-field"}},
    )  # fmt: skip
    (other.path / "result.json").write_text('{"said": "canary-of-two, canary-of-one, canary-of-the-shell"}')
    found = compare(one, other, (state("one"), state("two")))
    assert "canary" not in str(found.to_json())
    assert ("job", "args", "['--lr', '1']", "['--api-key', ***, '--lr', '2']") in [
        (row.section, row.what, row.one, row.other) for row in found.rows
    ]
    assert found.files[0].diff[-3:] == ("-key = 1", "-print('***')", "+key = 2")


def test_the_code_that_runs_of_a_sweep_share_is_reached_through_their_link(tmp_path: Path) -> None:
    runs = [made(tmp_path, name, {"a.py": text}, {}, {}) for name, text in (("one", "x = 1\n"), ("two", "x = 2\n"))]
    for run in runs:
        os.rename(run.path / "code", tmp_path / f"shared-{run.run_id}")
        (run.path / "code").symlink_to(tmp_path / f"shared-{run.run_id}")
    found = compare(*runs, (state("one"), state("two")))
    assert found.files[0].diff == ("--- a.py", "+++ a.py", "@@ -1 +1 @@", "-x = 1", "+x = 2")
