"""The working folder of a run is complete or missing, belongs to this run alone, and outlives its starts."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.node.server import working_folder
from orchestrator.node.server.outputs import find
from orchestrator.node.server.working_folder import copy_code, lay
from orchestrator.node.system import copying
from orchestrator.protocol.layout import baseline_file
from orchestrator.protocol.outputs import OutputRules

KILLED = """
import os, signal, sys
from orchestrator.node.server import working_folder
def copy(source, target, mode):
    open(target, "w").write("half")
    os.kill(os.getpid(), signal.SIGKILL)
working_folder.copy_file = copy
working_folder.lay(*sys.argv[1:])
"""


@pytest.fixture
def submitted(tmp_path: Path) -> Path:
    """The code of a sweep: a program, a package, links and a large file outside."""
    code = tmp_path / "sweeps/s/code"
    (code / "pack").mkdir(parents=True)
    (code / "train.py").write_text("print(1)\n")
    (code / "run.sh").write_text("true\n")
    (code / "run.sh").chmod(0o700)
    os.utime(code / "train.py", (1e9, 1e9))
    (code / "pack/link.py").symlink_to("../train.py")
    (tmp_path / "data.csv").write_text("1")
    (code / "data.csv").symlink_to(tmp_path / "data.csv")
    return code


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def outputs(run: Path) -> list[str]:
    return [entry.path for entry in find(str(run), f"{run}/code", "", OutputRules(), here=True).files]


def test_each_run_has_a_copy_of_its_own(submitted: Path, tmp_path: Path) -> None:
    runs = [tmp_path / f"runs/s.{index}" for index in range(2)]
    for run in runs:
        assert lay(str(submitted), str(run)) == 0
        assert names(run / "code") == names(submitted)
        (run / "code/train.py").write_text(run.name)
        (run / "code/model.pt").write_text(run.name)
    assert [(run / "code/model.pt").read_text() for run in runs] == ["s.0", "s.1"]
    assert (submitted / "train.py").read_text() == "print(1)\n"
    assert os.access(runs[0] / "code/run.sh", os.X_OK)
    assert (runs[0] / "code/pack/link.py").readlink() == Path("../train.py")
    assert (runs[0] / "code/pack/link.py").read_text() == "s.0"
    assert outputs(runs[1]) == ["model.pt", "train.py"]


def test_a_later_start_finds_the_files_of_the_earlier_one(submitted: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs/s.0"
    lay(str(submitted), str(run))
    (run / "code/step-1.pt").write_text("1")
    (run / "code/train.py").unlink()
    assert lay(str(submitted), str(run)) == 0
    assert (run / "code/step-1.pt").read_text() == "1"
    assert not (run / "code/train.py").exists()


def test_a_folder_that_the_run_has_deleted_is_made_again_and_older_outputs_still_count(
    submitted: Path, tmp_path: Path
) -> None:
    run = tmp_path / "runs/s.0"
    lay(str(submitted), str(run))
    made = os.stat(baseline_file(f"{run}/code")).st_mtime_ns
    (run / "beside.pt").write_text("1")
    for path in (run / "code").rglob("*"):
        if not path.is_dir() or path.is_symlink():
            path.unlink()
    (run / "code/pack").rmdir()
    (run / "code").rmdir()
    assert lay(str(submitted), str(run)) == 0
    assert names(run / "code") == names(submitted)
    assert os.stat(baseline_file(f"{run}/code")).st_mtime_ns == made
    assert outputs(run) == ["beside.pt"]


def test_a_start_that_was_killed_half_way_is_done_again(submitted: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs/s.0"
    done = subprocess.run([sys.executable, "-c", KILLED, submitted, run], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (run / "code").exists()
    assert len(names(run)) == 2  # an incomplete folder under another name
    assert lay(str(submitted), str(run)) == 0
    assert names(run / "code") == names(submitted)
    assert sorted(os.listdir(run)) == ["code", "code.baseline.json"]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    submitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "runs/s.0", tmp_path / "runs/s.1"
    lay(str(submitted), str(first))

    def full(source: str, target: str, mode: int) -> None:
        Path(target).touch(mode)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(working_folder, "copy_file", full)
        assert lay(str(submitted), str(second)) == 1
    says = f"orch: {second}/code: the run's working folder can't be created: No space left on device\n"
    assert capsys.readouterr().err == says
    assert names(second) == []
    assert names(first / "code") == names(submitted)
    assert lay(str(submitted), str(second)) == 0


def test_code_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="sweeps/s/code"):
        copy_code(f"{tmp_path}/sweeps/s/code", f"{tmp_path}/runs/s.0/code")
    assert os.listdir(tmp_path / "runs/s.0") == []


def test_a_copy_by_reflink_keeps_time_and_mode(
    submitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "is_cloned", lambda source, target: bool(target.write(source.read())))
    copying.copy_file(str(submitted / "run.sh"), str(tmp_path / "new"), 0o700)
    assert (tmp_path / "new").read_text() == "true\n"
    monkeypatch.setattr(copying, "is_cloned", lambda *_: False)
    assert not copying.copy_file(str(submitted / "run.sh"), str(tmp_path / "other"), 0o700, only_clone=True)
    assert not (tmp_path / "other").exists()
    copying.copy_file(str(submitted / "train.py"), str(tmp_path / "other"), 0o600)
    assert (tmp_path / "other").stat().st_mtime == 1e9
