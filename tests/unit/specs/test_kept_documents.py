"""What is kept of documents says the same as the documents, and is not believed where anything has changed."""

from __future__ import annotations

import dataclasses
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.node.system import kept
from orchestrator.specs.documents import kept_documents, loader
from orchestrator.specs.documents.kept_documents import FOLDER, SLOTS
from orchestrator.specs.documents.loaded import Loaded
from orchestrator.specs.environment import resolve
from orchestrator.specs.plan import RunPaths, plan

ROOT = Path(__file__).parents[3]
PATHS = RunPaths("/runs/r", "/runs/r/code", "/inputs", "python3", "python3")
JOB = "name: kept\nscript: train.py\nresources: {time: 90}\n"
SLURM = "kind: slurm\nnodes: 2\nnproc_per_node: 4\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder; the current folder has a job and a profile."""
    home, work = tmp_path / "home", tmp_path / "work"
    for folder in (home, work):
        folder.mkdir(0o700)
    (work / "job.yaml").write_text(JOB)
    (work / "slurm.yaml").write_text(SLURM)
    (work / "train.py").touch()
    monkeypatch.chdir(work)
    return home


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that the loader has read: what is taken from what is kept is not among them."""
    found: list[str] = []
    load = loader.load

    def counted(job: str, *args: Any, **options: Any) -> Loaded:
        found.append(job)
        return load(job, *args, **options)

    monkeypatch.setattr(loader, "load", counted)
    return found


def take(
    home: Path, job: str = "job.yaml", profile: str = "slurm.yaml",
    sets: tuple[str, ...] = (), flags: Mapping[str, Any] | None = None,
) -> Loaded:  # fmt: skip
    return kept_documents.load(home, job, profile, sets=sets, flags=flags or {}, allow_code_dir=False)


def kept_file(home: Path) -> Path:
    (path,) = (home / FOLDER).iterdir()
    return path


@pytest.mark.parametrize("job", sorted((ROOT / "jobs").glob("*.yaml")), ids=lambda path: path.stem)
def test_all_that_is_shipped_gives_the_same_plan(home: Path, reads: list[str], job: Path) -> None:
    sets, seen = ("job.training.lr=0.5",) if "training:" in job.read_text() else (), 0
    for profile in sorted((ROOT / "cluster_profiles").glob("*.yaml")):
        try:
            first = take(home, str(job), str(profile), sets)
        except SpecError:  # more ranks than can share its batch
            continue
        reads.clear()
        again, seen = take(home, str(job), str(profile), sets), seen + 1
        assert reads == []
        assert (repr(again.job), repr(again.profile)) == (repr(first.job), repr(first.profile))
        plans = [plan(each.job, each.profile, "r", PATHS, resolve(each.job, {}, {}).env) for each in (first, again)]
        assert plans[0] == plans[1]
        assert again == first
    assert seen


def test_numbers_are_of_the_same_kind(home: Path, reads: list[str]) -> None:
    """As text: 5 is equal to 5.0, and is recorded as another number."""
    (Path.cwd() / "train.yaml").write_text(
        "training: {task: train.py, lr: 1, clip: 1e300, options: {a: 1e-7, b: -0.0, c: 1.0, d: 1, e: 1e30}}\n"
        "idle: {}\nsearch: {space: {--x: {low: 1, high: 2.5}, --y: [1, 1.0, true, a]}}\n"
    )
    (Path.cwd() / "train.py").write_text("'a', 'b', 'c', 'd', 'e'")  # the words that a task may read
    first, again = take(home, "train.yaml"), take(home, "train.yaml")
    assert reads == ["train.yaml"]
    assert repr(again.job) == repr(first.job)


def test_notes_stay_and_a_copy_has_other_values(home: Path, reads: list[str]) -> None:
    first, again = take(home), take(home)
    assert reads == ["job.yaml"]
    assert again.notes == first.notes != ()
    assert [*again.job.given()] == [*first.job.given()] == ["name", "script", "resources"]
    copy = dataclasses.replace(again.job, args=("--lr", "1"))
    assert (copy.args, again.job.args, copy.name) == (("--lr", "1"), (), "kept")
    with pytest.raises(AttributeError, match="frozen"):
        again.job.name = "other"  # type: ignore[misc]  # what this is about


def test_it_is_read_again_where_anything_has_changed(home: Path, reads: list[str], tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    take(home)
    assert take(home, sets=("job.resources.time=2h",)).job.resources.time == 7200
    assert take(home, flags={"job.name": "other"}).job.name == "other"
    take(home)
    (Path.cwd() / "job.yaml").write_text(JOB.replace("90", "91"))
    assert take(home).job.resources.time == 91
    (Path.cwd() / "slurm.yaml").write_text(SLURM.replace("2", "3"))
    assert take(home).profile.nodes == 3
    reads.clear()
    assert take(home).profile.nodes == 3
    assert reads == []
    monkeypatch.setattr(kept, "sources", lambda *_: [("specs/job.py", 1, 1)])
    take(home)
    assert len(reads) == 1


def test_all_of_orch_that_reads_documents_is_looked_at() -> None:
    code = (
        "import sys, orchestrator.specs.documents.loader; print(*("
        "each.__file__ for name, each in sys.modules.items() if name.startswith('orchestrator.') and each.__file__))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    known = {path for path, _, _ in kept.sources(kept_documents.PACKAGE, kept_documents.SOURCES)}
    assert {path for path in loaded if not path.endswith("__init__.py")} <= known


def test_what_the_folder_lacks_is_said_as_ever(home: Path, reads: list[str]) -> None:
    take(home)
    (Path.cwd() / "train.py").unlink()
    with pytest.raises(SpecError, match=r"job\.yaml:2:9.*there is no 'train\.py' in the code folder"):
        take(home)
    assert len(reads) == 2


@pytest.mark.timeout(60)
def test_what_is_no_document_is_refused_and_not_read_to_its_end(home: Path) -> None:
    os.mkfifo("pipe.yaml")
    for profile in ("./pipe.yaml", "/dev/zero"):
        with pytest.raises(SpecError, match="not a regular file"):
            take(home, profile=profile)
    with open("large.yaml", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SpecError, match="larger than 1000 kB"):
        take(home, "large.yaml")


def test_it_is_private_and_what_is_damaged_or_another_s_is_not_believed(home: Path, reads: list[str]) -> None:
    take(home)
    path = kept_file(home)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]
    whole = path.read_bytes()
    for damaged in (whole.replace(b'"time": 90', b'"time": 91'), whole[:-1], b"", b"\xff" * 80):
        path.write_bytes(damaged)
        assert take(home).job.resources.time == 90
        assert path.read_bytes() == whole
    assert len(reads) == 5
    path.parent.chmod(0o777)
    take(home)
    assert len(reads) == 6


def test_a_dry_run_before_the_first_run_leaves_nothing(tmp_path: Path, home: Path) -> None:
    take(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_they_never_become_more(home: Path) -> None:
    assert len({kept_documents._path(home, f"{number:064x}") for number in range(SLOTS * 3)}) == SLOTS
