"""Exported pages give nothing away of any of their runs, and still answer all that the page asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from orchestrator.cli import orch
from orchestrator.cli.render.runs import note
from orchestrator.runs import leaving
from orchestrator.runs.store import RunDir
from orchestrator.web.export import export_pages
from tests.unit.views.runs_made import FAILED, begin, end, make

USER, HOME = "jdoe", "/home/jdoe"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\ncanary1+b3BlbnNzaC1r\ncanary2+ZXktdjE=\n-----END OPENSSH PRIVATE KEY-----\n"


def point(root: Path, number: int) -> RunDir:
    """A point of a sweep with a token of its own, which stands wherever a run can put it."""
    token = f"canary-token-{number}"
    job = {"name": "tune", "args": ["--api-key", f"canary-arg-{number}"], "secrets": ["PIN"]}
    values = {"job.args": f"--api-key canary-value-{number}", "lr": number}
    run = make(root, f"tune-abcdef.{number}", job=job, sweep={"sweep": "tune-abcdef", "values": values})
    run.write("plan.json", {"job": job, "secret_names": ["PIN"], "tasks": [{"env": {"HF_TOKEN": token}}]})
    begin(run)
    metrics = {"loss": 1.0, f"of {token}/x": 2.0, "PIN is pin-canary": 3.0, f"at {HOME}/x": 1.0}
    (run.path / "metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 1, **metrics}) + "\n")
    run.write("result.json", {"loss": number, "said": f"{token} and pin-canary"})
    folder = run.node(0) / "attempt_0"
    folder.mkdir(parents=True)
    (folder / "rank_0.log").write_text(f"before\n{KEY}it has {token} in {HOME}\n")
    end(run, FAILED)
    return run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunDir]:
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setenv("PIN", "pin-canary")
    monkeypatch.setenv("ORCH_HOME", str(tmp_path / "root"))
    monkeypatch.setattr(leaving.getpass, "getuser", lambda: USER)
    return [point(tmp_path / "root", number) for number in (1, 2)]


def exported(root: Path, runs: list[RunDir], folder: Path) -> dict[str, Any]:
    export_pages(root, note, folder, runs)
    found: dict[str, Any] = json.loads((folder / "data.js").read_text().partition(" = ")[2].rstrip(";\n"))
    return found


def test_no_page_tells_a_secret_of_any_of_its_runs(runs: list[RunDir], tmp_path: Path) -> None:
    found = exported(tmp_path / "root", runs, tmp_path / "out")
    told = {where: answer for where, answer in found.items() if "canary" in where + json.dumps(answer)}
    assert told == {}
    assert USER not in json.dumps(found)
    pages = {where.partition("?")[0] for where in found}
    assert {"/api/runs", "/api/sweeps/tune-abcdef", "/api/diff", "/api/curves"} <= pages


def test_the_page_finds_the_curves_of_a_metric_by_its_redacted_name(runs: list[RunDir], tmp_path: Path) -> None:
    found = exported(tmp_path / "root", runs, tmp_path / "out")
    names = found["/api/curves?run=tune-abcdef.1&metric=loss"]["names"]
    assert "of ***/x" in names
    assert "at ~/x" in names
    for name in names:  # as URLSearchParams writes them
        asked = quote(name, safe="*-._ ").replace("~", "%7E").replace(" ", "+")
        assert f"/api/curves?run=tune-abcdef.1&metric={asked}" in found


def test_a_log_keeps_its_lines_and_loses_the_key_in_them(runs: list[RunDir], tmp_path: Path) -> None:
    found = exported(tmp_path / "root", runs, tmp_path / "out")
    page = found["/api/runs/tune-abcdef.1/log?rank=0&attempt=0"]["page"]
    assert [line["text"] for line in page["lines"]] == ["before", "***", "", "", "", "it has *** in ~"]


def test_a_secret_that_is_not_set_here_is_named(
    runs: list[RunDir], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIN")
    done = CliRunner().invoke(orch, ["ui", "--export", str(tmp_path / "out")], catch_exceptions=False)
    assert "PIN: not set in this shell, so orch can't mask this secret in the run's output" in done.output
