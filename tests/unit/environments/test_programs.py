"""Reading a lock and building its sources starts no program that a folder has laid out for uv to find."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator.environments.choice import Choice
from orchestrator.environments.interpreter import Interpreter
from orchestrator.environments.lock import Lock, read_lock
from orchestrator.environments.packages import _compiled
from orchestrator.environments.uv import run_uv
from orchestrator.environments.wheels import WheelStore
from orchestrator.specs.python_environment import PythonEnvironment
from tests import wheels

HERE = Interpreter(
    sys.executable, sys.version.split()[0], "linux-x86_64", "glibc 2.36", free_threaded=False, markers={}
)


@pytest.fixture(autouse=True)
def _nothing_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)


def trap(folder: Path) -> Path:
    """Lay out an interpreter where uv looks for one; the file that is there once it has been started."""
    started, python = folder / "started", folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    (folder / ".venv" / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    python.write_text(f'#!/bin/sh\ntouch {started}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return started


def test_the_trap_is_one(tmp_path: Path) -> None:
    started = trap(tmp_path)
    run_uv("pip", "compile", "-", "--universal", cwd=tmp_path)
    assert started.exists()


def test_a_requirements_file_is_resolved_by_orchs_own_interpreter(tmp_path: Path) -> None:
    started = trap(tmp_path)
    assert "packages" in _compiled(Lock("requirements.txt", "", "", str(tmp_path)), HERE)
    assert not started.exists()


def test_a_lock_of_uv_is_read_by_orchs_own_interpreter(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.9"\n')
    run_uv("lock", "--python", sys.executable, cwd=tmp_path)
    started = trap(tmp_path)
    assert "packages" in read_lock(PythonEnvironment(lock="uv.lock"), tmp_path).pylock
    assert not started.exists()


def test_uv_itself_is_looked_for_by_no_settings_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uv.toml").write_text("this is no TOML")
    monkeypatch.chdir(tmp_path)
    assert "packages" in _compiled(Lock("uv", "", "", ""), HERE)


def test_a_source_is_built_beside_no_interpreter_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    started = trap(tmp_path / "shared")  # as anybody may lay it out in /tmp
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "shared"))
    source = wheels.sdist(tmp_path / "wheels", "alpha", "4.0")
    choice = Choice("alpha", "4.0", source.name, wheels.sha256(source), source.as_uri(), is_sdist=True)
    assert WheelStore(tmp_path / "root").built(choice, HERE).file == "alpha-4.0-py3-none-any.whl"
    assert not started.exists()
