"""What the page is given of a run's files: a part of one that is listed, and never what a link leads to."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlencode

import pytest

from orchestrator.runs.store import RunDir
from orchestrator.web import contents
from tests.unit.views.runs_made import make
from tests.unit.web.browser import Browser


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run whose outputs were copied from its machine, and which has a checkpoint."""
    run = make(tmp_path / "root", "train-abcdef", kind="ssh")
    run.write("plan.json", {"job": {}, "tasks": [{}]})
    (run.path / "outputs" / "plots").mkdir(parents=True)
    (run.path / "outputs" / "plots" / "loss.txt").write_text("0123456789")
    (run.path / "checkpoints" / "step_00000005").mkdir(parents=True)
    (run.path / "checkpoints" / "step_00000005" / "state.json").write_text("{}")
    (tmp_path / "secret").write_text("secret")
    return run


def ask(run: RunDir, **query: object) -> tuple[int, str]:
    answer = Browser(run.root).get(f"/api/runs/{run.run_id}/content?{urlencode(query)}")
    return answer.status, answer.text


def test_a_part_of_an_output_is_read(run: RunDir) -> None:
    assert ask(run, path="plots/loss.txt") == (200, "0123456789")
    assert ask(run, path="plots/loss.txt", offset=2, count=3) == (200, "234")
    assert ask(run, path="plots/loss.txt", offset=99) == (200, "")


def test_no_browser_reads_a_file_as_a_page(run: RunDir) -> None:
    (run.path / "outputs" / "page.html").write_text("<script>alert(1)</script>")
    headers = Browser(run.root).get(f"/api/runs/{run.run_id}/content?path=page.html").headers
    assert (headers["content-type"], headers["content-disposition"]) == ("application/octet-stream", "attachment")
    assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
    assert headers["x-orch-size"] == "25"


def test_a_part_is_bounded(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MOST_BYTES", 4)
    assert ask(run, path="plots/loss.txt", count=10**9) == (200, "0123")


@pytest.mark.parametrize("path", ["", "none", "../run.json", "/etc/passwd", "plots", "plots/../plots/loss.txt", "\0"])
def test_what_is_not_among_the_outputs_is_refused(run: RunDir, path: str) -> None:
    status, said = ask(run, path=path)
    assert status == 400
    assert "the run has no output" in said


@pytest.mark.parametrize("path", ["../../run.json", "/etc/passwd", "", ".", "link", "folder/secret", "none", "\0"])
def test_nothing_beside_a_checkpoint_is_read(run: RunDir, tmp_path: Path, path: str) -> None:
    folder = run.path / "checkpoints" / "step_00000005"
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    assert ask(run, checkpoint="step_00000005", path="state.json") == (200, "{}")
    status, said = ask(run, checkpoint="step_00000005", path=path)
    assert status in (400, 409), said
    assert "secret" not in said.replace(path, "")


def test_an_output_that_became_a_link_or_a_pipe_is_not_read(run: RunDir, tmp_path: Path) -> None:
    listed = run.path / "outputs" / "plots" / "loss.txt"
    listed.unlink()
    listed.symlink_to(tmp_path / "secret")
    assert ask(run, path="plots/loss.txt")[0] in (400, 409)
    listed.unlink()
    os.mkfifo(listed)
    assert ask(run, path="plots/loss.txt")[0] in (400, 409)


@pytest.mark.parametrize("query", [{"offset": "-1"}, {"count": "x"}, {"offset": "1" * 30}, {"count": "²"}])
def test_an_odd_number_is_refused(run: RunDir, query: dict[str, str]) -> None:
    status, said = ask(run, path="plots/loss.txt", **query)
    assert (status, "is not a number" in said) == (400, True)


def test_the_files_of_a_checkpoint_are_listed_without_links(run: RunDir, tmp_path: Path) -> None:
    (run.path / "checkpoints" / "step_00000005" / "link").symlink_to(tmp_path / "secret")
    found = Browser(run.root).get(f"/api/runs/{run.run_id}/files").found
    assert [each["name"] for each in found["checkpoints"]] == ["step_00000005"]
    assert found["checkpoints"][0]["entries"] == [{"path": "state.json", "bytes": 2}]
