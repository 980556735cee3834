"""Which of several machines looks after a run."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from orchestrator.looking.state import state_of
from orchestrator.runs import claims
from orchestrator.runs.claims import (
    AGAIN_SECONDS,
    AWAY_SECONDS,
    CLAIM_SECONDS,
    START_SECONDS,
    claim_of,
    is_away,
    is_ours,
    may_take,
    report,
    take,
)
from orchestrator.runs.store import RunDir, create_run

At = pytest.MonkeyPatch


def run_of(root: Path, home: str, run_id: str = "r-222222", created: float = 0.0) -> RunDir:
    return create_run(root, run_id, {"nnodes": 1, "kind": "ssh", "submitter": {"host": home}, "created": created})


def be(at: At, host: str) -> None:
    """Act as this machine from now on."""
    at.setattr(claims, "here", lambda: host)


def beat(root: Path, host: str, ago: float = 0.0) -> None:
    (root / claims.record_name(host)).touch()
    os.utime(root / claims.record_name(host), (time.time() - ago,) * 2)


def test_the_machine_of_the_submit_is_the_first(tmp_path: Path, monkeypatch: At) -> None:
    run = run_of(tmp_path, "a", created=time.time())
    be(monkeypatch, "b")
    assert not may_take(run, claim_of(run))
    assert not may_take(run, claim_of(run), time.time() + CLAIM_SECONDS + 1)  # its start may take long
    assert may_take(run, claim_of(run), time.time() + START_SECONDS + 1)  # the supervisor of a never came up
    be(monkeypatch, "a")
    assert may_take(run, claim_of(run))
    assert take(run, claim_of(run))
    assert is_ours(run)


@pytest.mark.parametrize(("ago", "free"), [(0.0, False), (CLAIM_SECONDS - 5, False), (CLAIM_SECONDS + 5, True)])
def test_a_machine_that_shows_no_life_loses_its_runs(tmp_path: Path, monkeypatch: At, ago: float, free: bool) -> None:
    run = run_of(tmp_path, "a")
    be(monkeypatch, "a")
    assert take(run, claim_of(run))
    beat(tmp_path, "a", ago)
    be(monkeypatch, "b")
    assert may_take(run, claim_of(run)) is free
    assert not is_ours(run)


def test_what_one_machine_can_not_do_any_other_takes_at_once(tmp_path: Path, monkeypatch: At) -> None:
    run = run_of(tmp_path, "a")
    for host in "ab":
        beat(tmp_path, host)
    be(monkeypatch, "b")
    assert take(run, claim_of(run))
    assert report(run, "n2: Name or service not known")
    assert claim_of(run).why_unable == "n2: Name or service not known"
    said = state_of(run).detail
    assert said.startswith(
        "b looks after the run and can't do its work: n2: Name or service not known; to move the run"
    )
    be(monkeypatch, "a")
    assert may_take(run, claim_of(run))
    assert take(run, claim_of(run))
    be(monkeypatch, "b")
    assert not report(run, "n2: Name or service not known")  # it is not b's run any more
    assert not may_take(run, claim_of(run))
    be(monkeypatch, "a")
    assert report(run, "n2: Connection refused")  # a can't do it either
    be(monkeypatch, "b")
    assert not may_take(run, claim_of(run))
    assert may_take(run, claim_of(run), time.time() + AGAIN_SECONDS + 1)
    be(monkeypatch, "a")
    assert report(run, "")
    assert (claim_of(run).host, claim_of(run).why_unable) == ("a", "")


def test_of_several_that_take_a_run_one_gets_it(tmp_path: Path, monkeypatch: At) -> None:
    run = run_of(tmp_path, "")
    seen, taken = claim_of(run), []
    for host in "abc":
        be(monkeypatch, host)
        taken.append(take(run, seen))
    assert taken == [True, False, False]
    assert claim_of(run).host == "a"
    assert [path.name for path in (run.path / "claims").iterdir()] == ["1"]


def test_all_points_of_a_sweep_have_one_claim(tmp_path: Path, monkeypatch: At) -> None:
    (tmp_path / "sweeps/s-222222").mkdir(parents=True)
    runs = [run_of(tmp_path, "a", f"s-222222.{index}") for index in range(2)]
    be(monkeypatch, "b")
    assert take(runs[0], claim_of(runs[0]))
    assert is_ours(runs[1])
    assert claim_of(runs[1]).number == 1


def test_on_a_full_disk_a_run_is_looked_after_all_the_same(tmp_path: Path, monkeypatch: At) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    mine, others = run_of(tmp_path, "a"), run_of(tmp_path, "b", "r-333333")
    be(monkeypatch, "a")
    monkeypatch.setattr(claims, "write_json", full)
    assert take(mine, claim_of(mine))
    assert report(mine, "n2: timed out")
    assert not take(others, claim_of(others))


@pytest.mark.parametrize("left", [b"", b"{", b'{"host": "c", "unable": []}', b'{"host": "c"}'], ids=repr)
def test_a_claim_that_a_crash_has_damaged_is_replaced(tmp_path: Path, monkeypatch: At, left: bytes) -> None:
    run = run_of(tmp_path, "a")
    be(monkeypatch, "a")
    assert take(run, claim_of(run))
    (run.path / "claims" / "1").write_bytes(left)
    assert (claim_of(run).number, claim_of(run).host) == (1, "a")
    assert report(run, "n2: timed out")
    assert claim_of(run).why_unable == "n2: timed out"
    beat(tmp_path, "a", CLAIM_SECONDS + 5)
    (run.path / "claims" / "2").write_bytes(left)
    be(monkeypatch, "b")
    assert may_take(run, claim_of(run))
    assert take(run, claim_of(run))
    assert (claim_of(run).number, claim_of(run).host) == (3, "b")


def test_a_run_that_was_removed_is_not_made_again(tmp_path: Path, monkeypatch: At) -> None:
    run = run_of(tmp_path, "a")
    be(monkeypatch, "a")
    shutil.rmtree(run.path)
    assert not take(run, claim_of(run))
    assert not run.path.exists()


def test_a_machine_that_is_gone_for_a_day_is_not_waited_for(tmp_path: Path, monkeypatch: At) -> None:
    run = run_of(tmp_path, "a")
    be(monkeypatch, "b")
    assert not is_away(run)  # it has never been seen
    beat(tmp_path, "a", 60)
    assert is_away(run)
    beat(tmp_path, "a", AWAY_SECONDS + 60)
    assert not is_away(run)


def test_the_time_of_the_file_system_decides_and_not_this_machines_clock(tmp_path: Path, monkeypatch: At) -> None:
    run = run_of(tmp_path, "a")
    be(monkeypatch, "a")
    assert take(run, claim_of(run))
    beat(tmp_path, "a")
    be(monkeypatch, "b")
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert not may_take(run, claim_of(run))
