"""A verdict about a missing file says why it was not sent, if the file is in the user's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.outcome.verdict import Outcome, Verdict
from orchestrator.runs.missing_files import explained
from orchestrator.runs.store import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    code = tmp_path / "mine"
    (code / "data").mkdir(parents=True)
    (code / "data/train.bin").write_text("1")
    (code / ".gitignore").write_text("\n# weights\n*.bin\n")
    found = RunDir(tmp_path / "runs/r-1")
    found.path.mkdir(parents=True)
    found.write("run.json", {"kind": "ssh", "code_dir": str(code), "job": {"code": {"ignore": ".orchignore"}}})
    found.write("plan.json", {"tasks": [{"code_dir": "~/.orch/runs/r-1/code"}]})
    found.write("code.json", {"files": {"train.py": ["f", ""], "sent.txt": ["f", ""]}})
    return found


def failed(message: str, kind: str = "FileNotFoundError") -> Verdict:
    return Verdict(Outcome.FAILED, rank=0, error={"type": kind, "message": message}, hint="the usual one")


@pytest.mark.parametrize(
    "message",
    [
        "[Errno 2] No such file or directory: 'data/train.bin'",
        "[Errno 2] No such file or directory: '/home/alice/.orch/runs/r-1/code/data/train.bin'",
        "./data/train.bin not found.",
    ],
)
def test_the_rule_that_left_the_file_out_is_named(run: RunDir, message: str) -> None:
    hint = explained(run, failed(message)).hint
    assert hint.startswith(
        f"data/train.bin is in {run.read('run.json')['code_dir']} and was not sent: .gitignore:3 (*.bin)"
    )  # type: ignore[index]
    assert "!data/train.bin" in hint


def test_the_folder_that_a_rule_leaves_out_is_what_has_to_be_sent(run: RunDir) -> None:
    (Path(run.record().code_dir) / ".gitignore").write_text("data/\n")
    hint = explained(run, failed("No such file or directory: 'data/train.bin'")).hint
    assert "to send it, write !data/ into .orchignore, or name it in inputs" in str(hint)


def test_a_link_to_a_folder_was_not_sent(run: RunDir, tmp_path: Path) -> None:
    (Path(run.record().code_dir) / "linked").symlink_to(tmp_path / "mine/data")
    hint = explained(run, failed("No such file or directory: 'linked/train.bin'")).hint
    assert "linked in " in str(hint)
    assert "is a link to a folder, and was not sent: give the script a path that exists on the nodes" in str(hint)


@pytest.mark.parametrize(
    "message",
    [
        "[Errno 2] No such file or directory: 'elsewhere/train.bin'", "No such file or directory: '../../etc/passwd'",
        "No such file or directory: 'sent.txt'", "No such file or directory: 'a\\0b'", "data/train.bin is odd",
    ],
)  # fmt: skip
def test_other_errors_keep_their_hint(run: RunDir, message: str) -> None:
    verdict = failed(message, "ValueError")
    assert explained(run, verdict) is verdict


def test_a_damaged_record_costs_only_the_hint(run: RunDir) -> None:
    run.write("run.json", {"kind": "ssh", "code_dir": str(run.path), "job": {"code": 3}})
    verdict = failed("No such file or directory: 'data/train.bin'")
    assert explained(run, verdict).hint == "the usual one"
