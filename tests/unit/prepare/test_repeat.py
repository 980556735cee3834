"""A repeated run gets the job, the profile and the very code of the one before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.errors import SpecError, UsageError
from orchestrator.prepare import record
from orchestrator.prepare.prepare import Request, plan_for, prepare
from orchestrator.runs.files.code_snapshot import take
from orchestrator.runs.store import RunDir, create_run

JOB = """
script: train.py
args: [--lr, 1e-3]
env: {A: "1", B: null}
secrets: [KEY]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run as submit leaves it, but that nothing was started."""
    code = tmp_path / "project"
    (code / "pkg").mkdir(parents=True)
    (code / "train.py").write_text("print(1)\n")
    (code / "pkg/kept.log").write_text("shipped, because .orchignore rules\n")
    (code / ".gitignore").write_text("*.log\n")
    (code / ".orchignore").write_text(".orchignore\n!kept.log\n")
    (code / "run.sh").touch(0o755)
    (code / "link").symlink_to("pkg/kept.log")
    (code / "job.yaml").write_text(JOB)
    (tmp_path / "here.yaml").write_text("kind: local\nnproc_per_node: 2\n")
    monkeypatch.setenv("B", "from the shell")
    monkeypatch.setenv("KEY", "canary-1")
    monkeypatch.setenv("FROM_SHELL", "x")
    request = Request(str(code / "job.yaml"), str(tmp_path / "here.yaml"), env=("C=3", "FROM_SHELL"))
    return recorded(root, request, "job-first1")


def recorded(root: Path, request: Request, run_id: str) -> RunDir:
    prepared = prepare(root, request)
    launch = plan_for(root, prepared, run_id)
    made = create_run(root, run_id, record._record(prepared, launch))
    made.write("plan.json", launch.to_json())
    record.snapshot_code(prepared, made)
    return made


def tree(folder: Path) -> dict[str, tuple[str, bool]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    texts = [os.readlink(path) if path.is_symlink() else path.read_text() for path in files]
    return {str(p.relative_to(folder)): (text, os.access(p, 1)) for p, text in zip(files, texts, strict=True)}


def test_the_same_again_without_what_the_run_wrote(root: Path, run: RunDir, tmp_path: Path, monkeypatch) -> None:
    before = tree(run.path / "code")
    (run.path / "code/output.txt").write_text("written by a rank")
    (run.path / "code/pkg/__pycache__").mkdir()
    for path in (tmp_path / "project").glob("*.*"):
        path.unlink()  # neither the job file nor the code is needed
    monkeypatch.setenv("FROM_SHELL", "y")
    again = recorded(root, Request("", "", again="job-first"), "job-second")
    before.pop(".orchignore")  # an ignored file comes from the code folder itself
    assert tree(again.path / "code") == before
    old, new = run.read("run.json"), again.read("run.json")
    assert old is not None
    assert new is not None
    assert new["repeats"] == "job-first1"
    for name in ("job", "profile", "job_file", "profile_file", "code_dir", "name", "profile_name", "given"):
        assert new[name] == old[name], name
    plans = [each.read("plan.json") or {} for each in (run, again)]
    assert [plan["shared"]["env"] for plan in plans] == [
        {"A": "1", "B": "from the shell", "C": "3", "FROM_SHELL": x} for x in "xy"
    ]
    snapshots = [next(e for e in each.event_lines() if e["kind"] == "snapshot") for each in (run, again)]
    assert {**snapshots[0], "time": 0} == {**snapshots[1], "time": 0}
    assert again.read("code.json") == run.read("code.json")
    third = recorded(root, Request("", "", again="job-second"), "job-third")
    assert tree(third.path / "code") == before


def test_what_the_shell_must_have_again(root: Path, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEY")
    with pytest.raises(UsageError, match=r"KEY \(a secret\)"):
        prepare(root, Request("", "", again=run.run_id))
    monkeypatch.setenv("KEY", "canary-2")
    monkeypatch.delenv("B")
    with pytest.raises(UsageError, match="the job needs B"):
        prepare(root, Request("", "", again=run.run_id))
    prepared = prepare(root, Request("", "", again=run.run_id, env=("B=given", "C=4")))
    assert prepared.environment.secrets == {"KEY": "canary-2"}
    assert (prepared.environment.env["B"], prepared.environment.env["C"]) == ("given", "4")


def test_with_another_profile_and_other_fields(root: Path, run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "three.yaml").write_text("kind: local\nnodes: 3\nnproc_per_node: 1\n")
    request = Request("", str(tmp_path / "three.yaml"), again=run.run_id, sets=("job.args=[--lr, 2]",))
    prepared = prepare(root, request)
    assert (prepared.profile.nodes, prepared.loaded.job.args) == (3, ("--lr", "2"))
    assert prepared.loaded.job.code.dir == "."
    with pytest.raises(SpecError, match=r"there is no .absent\.py. in the code folder"):
        prepare(root, Request("", "", again=run.run_id, sets=("job.script=absent.py",)))


def test_a_record_s_times_are_seconds_and_no_mistake(root: Path, run: RunDir, tmp_path: Path) -> None:
    profile = tmp_path / "s.yaml"
    profile.write_text("kind: slurm\ntime: 60\n")
    sets = ("job.resources.time=90",)
    asked = Request(str(tmp_path / "project/job.yaml"), str(profile), sets, env=("B=2", "KEY=swordfish"))
    assert len(prepare(root, asked).loaded.notes) == 2
    again = Request("", str(profile), env=("B=2", "KEY=swordfish"), again=run.run_id)
    assert prepare(root, again).loaded.notes == ()


def test_a_rehearsal_is_repeated_as_one(root: Path, run: RunDir) -> None:
    recorded(root, Request("", "", again=run.run_id, rehearse=True), "job-rehearsed")
    found = recorded(root, Request("", "", again="job-rehearsed"), "job-again").read("run.json")
    assert found is not None
    assert found["profile_name"] == "here (rehearsal)"


def test_code_that_the_run_changed_is_refused(root: Path, run: RunDir) -> None:
    (run.path / "code/train.py").write_text("print(2)\n")
    with pytest.raises(UsageError, match=r"train\.py: changed since they were sent"):
        recorded(root, Request("", "", again=run.run_id), "job-second")
    assert not (root / "runs/job-second/code").exists()
    (run.path / "code/train.py").unlink()
    with pytest.raises(UsageError, match=r"train\.py"):
        recorded(root, Request("", "", again=run.run_id, sets=("job.script=run.sh",)), "job-third")


def test_a_run_without_its_record_or_code(root: Path, run: RunDir) -> None:
    (run.path / "code.json").unlink()
    with pytest.raises(UsageError, match="there is no code folder"):
        prepare(root, Request("", "", again=run.run_id))
    run.write("run.json", {"run_id": run.run_id})
    with pytest.raises(UsageError, match="the record of its job or code is missing"):
        prepare(root, Request("", "", again=run.run_id))


def test_the_listing_is_the_snapshots(run: RunDir, tmp_path: Path) -> None:
    listing = (run.read("code.json") or {})["files"]
    assert {path: entry[0] for path, entry in listing.items()} == {
        "train.py": "f", "pkg": "d", "pkg/kept.log": "f", ".gitignore": "f", "run.sh": "x", "link": "l", "job.yaml": "f"
    }  # fmt: skip
    (run.path / "code/.orchignore").unlink()
    sizes = take(run.path / "code", tmp_path / "copy", ".orchignore", 1 << 20).listing
    assert "pkg/kept.log" not in sizes  # which is why a repeated run does not ask the patterns again


def test_a_program_that_spawns_is_started_once_again_unless_the_repeat_asks_for_more(
    root: Path, run: RunDir, tmp_path: Path
) -> None:
    (tmp_path / "project/train.py").write_text("import torch.multiprocessing as mp\nmp.spawn(print)\n")
    first = Request(str(tmp_path / "project/job.yaml"), str(tmp_path / "here.yaml"), env=("C=3", "FROM_SHELL"))
    recorded(root, first, "job-spawn1")

    def ranks(*sets: str) -> list[tuple[int | None, bool]]:
        plan = plan_for(root, prepare(root, Request("", "", sets=sets, again="job-spawn1")), "job-again2")
        return [(task.nproc, task.all_gpus) for task in plan.tasks]

    assert ranks() == [(1, True)]
    assert ranks("profile.nproc_per_node=2") == [(2, False)]
