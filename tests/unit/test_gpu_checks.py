"""tests/gpu/run.py without a GPU: what it lists, and what it makes of checks that pass, fail, hang and die."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.node.system.processes import identify, wait_gone
from tests.gpu import run
from tests.gpu.checks import CHECKS, SPEED_PART, Check
from tests.gpu.lab import Lab, NotHere
from tests.patience import PATIENCE

HERE = "tests.unit.test_gpu_checks"


def passes(_lab: Lab) -> dict[str, int]:
    return {"found": 3}


def fails(_lab: Lab) -> dict[str, int]:
    raise AssertionError("2 is not 3")


def is_not_here(_lab: Lab) -> dict[str, int]:
    raise NotHere("it needs a card of another kind")


def dies(_lab: Lab) -> dict[str, int]:
    print("last words", flush=True)
    os._exit(7)


def hangs(lab: Lab) -> dict[str, int]:
    child = subprocess.Popen(["sleep", "600"])
    (lab.folder / "child").write_text(str(child.pid))
    time.sleep(600)
    return {}


def fake(name: str, function: str, **values: object) -> Check:
    return Check(name, f"{HERE}:{function}", 60, "is asked", **values)  # type: ignore[arg-type]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make these checks on a machine that says that it has one GPU; (exit code, results by name)."""
    monkeypatch.setattr(run.Run, "machine", lambda _self: {"gpus": 1, "words": "one GPU", "problem": ""})

    def make(*checks: Check, limit: str = "570") -> tuple[int, dict[str, dict]]:
        code = run.main(["--out", str(tmp_path), "--limit", limit], checks)
        lines = (tmp_path / "results.jsonl").read_text().splitlines()
        return code, {row["name"]: row for row in map(json.loads, lines)}

    return make


def test_every_check_is_listed_with_its_limit_on_any_machine_without_torch() -> None:
    code = (
        f"import sys; sys.modules['torch'] = None; sys.argv = ['run.py', '--list']; exec(open({run.__file__!r}).read())"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"__file__ = {run.__file__!r}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == [check.name for check in CHECKS]
    assert all(f" {check.limit} s" in line for check, line in zip(CHECKS, lines[:-1], strict=True))
    assert run.whole_limit(check for check in CHECKS if check.gpus == 1) <= 570


def test_every_check_has_a_name_of_its_own_and_a_function() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.function().__doc__, check.name
        assert check.after in {"", *(each.name for each in CHECKS)}
    assert not any(check.must for check in CHECKS if check.part == SPEED_PART)


def test_what_came_of_each_check_is_written_and_the_exit_code_is_that_of_what_must_pass(make, tmp_path: Path) -> None:
    code, rows = make(
        fake("A", "passes"),
        fake("B", "fails"),
        fake("C", "dies"),
        fake("D", "is_not_here"),
        fake("E", "passes", gpus=2),
    )
    assert code == 1
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "A": "passed", "B": "failed", "C": "failed", "D": "not here", "E": "not here",
    }  # fmt: skip
    assert rows["A"]["values"] == {"found": 3}
    assert rows["B"]["said"] == "AssertionError: 2 is not 3"
    assert "ended with 7; last words" in rows["C"]["said"]
    assert "it needs 2 GPUs" in rows["E"]["said"]


def test_what_need_not_pass_and_what_is_known_does_not_count(make, capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = make(fake("A", "fails", must=False), fake("B", "fails", known="C9"), fake("C", "passes", known="C9"))
    assert code == 0
    table = capsys.readouterr().out
    assert "failed (told only)" in table
    assert "failed (known: C9)" in table
    assert "take the mark away" in table


def test_a_check_over_its_limit_is_ended_with_all_that_it_started(make, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(run, "GRACE_SECONDS", 1.0)
    hangs = dataclasses.replace(fake("A", "hangs"), limit=16)
    checks = (hangs, fake("B", "passes", after="A"), fake("C", "passes", part=SPEED_PART))
    code, rows = make(*checks, limit="22")
    assert code == 1
    assert rows["A"]["outcome"] == "over its limit"
    assert rows["B"]["said"] == "A has not passed"
    assert rows["C"]["said"] == "no time was left"
    child = identify(int((tmp_path / "A" / "child").read_text()))
    assert child is None or not wait_gone([child], PATIENCE)


def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(run.Run, "machine", lambda _self: {"gpus": 0, "words": "none", "problem": "no driver"})
    assert run.main(["--out", str(tmp_path)]) == 2
    assert "no GPU that torch can use: no driver" in capsys.readouterr().err
    assert run.main(["--out", str(tmp_path), "T99"]) == 2
    assert "there is no check T99" in capsys.readouterr().err


def test_checks_that_share_a_card_hold_none(tmp_path: Path) -> None:
    """A card on which another check computes would be refused to a run that holds its cards, or be waited for."""
    shared, held = (Lab(tmp_path).profile(nproc=2, leased=leased) for leased in (False, True))
    assert "leases: false\n" in Path(shared).read_text()
    assert "leases: true\n" in Path(held).read_text()
