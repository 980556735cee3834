"""The wheel holds all that the command needs, and its command runs from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from email import message_from_string
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.result import Result

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without a network: the build backend is an ordinary package of the tests."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel was installed in, without what it depends on."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run(
        [*pip, "--no-index", "--no-deps", "--no-warn-script-location", "--target", str(folder), str(wheel)],
        check=True, capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    return folder


def contents(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_what_the_wheel_holds(wheel: Path) -> None:
    files = contents(wheel)
    assert wheel.name.startswith("orchrun-")
    info = next(name for name in files if name.endswith(".dist-info/METADATA")).removesuffix("METADATA")
    about = message_from_string(files[f"{info}METADATA"])
    assert (about["Name"], about["License-Expression"]) == ("orchrun", "Apache-2.0")
    assert files[f"{info}licenses/LICENSE"] == (ROOT / "LICENSE").read_text()
    scripts = ConfigParser()
    scripts.read_string(files[f"{info}entry_points.txt"])
    assert dict(scripts["console_scripts"]) == {"orch": "orchestrator.cli:main"}
    assert "orchestrator/py.typed" in files
    assert not [name for name in files if "__pycache__" in name or name.startswith("tests/")]


@pytest.mark.parametrize("folder", ["jobs", "cluster_profiles"])
def test_every_shipped_file_is_in_it(wheel: Path, folder: str) -> None:
    tracked = {path.name: path.read_text() for path in (ROOT / folder).iterdir() if path.is_file()}
    inside = f"orchestrator/shipped/{folder}/"
    shipped = {name.removeprefix(inside): text for name, text in contents(wheel).items() if name.startswith(inside)}
    assert shipped == tracked


def test_every_module_is_in_it(wheel: Path) -> None:
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "orchestrator").rglob("*.py")}
    assert {name for name in contents(wheel) if name.endswith(".py") and "/shipped/" not in name} == modules


def test_its_command_runs_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()

    def orch(*args: str) -> Result:
        environment = {**os.environ, "PYTHONPATH": str(installed), "ORCH_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
        done = subprocess.run(
            [str(installed / "bin" / "orch"), *args],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        return Result(done.returncode, done.stdout, done.stderr)

    where = subprocess.run(
        [sys.executable, "-c", "import orchestrator; print(orchestrator.__file__)"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(where.stdout.strip()).is_relative_to(installed)  # and not this checkout
    assert orch("--version").out.startswith("orch, version ")
    profiles = {row["profile"]: row["where"] for row in orch("profiles", "--json").json}
    assert profiles == {path.stem: "shipped with orch" for path in (ROOT / "cluster_profiles").glob("*.yaml")}
    for job in (ROOT / "jobs").glob("*.yaml"):
        planned = orch("submit", job.stem, "--profile", "local", "--dry-run", "--json")
        assert planned.json["shared"]["program"]["kind"] in ("module", "script", "command"), planned.err
    by_path = orch("submit", "jobs/hello.yaml", "--profile", "local")
    assert (by_path.code, "did you mean hello?" in by_path.err) == (2, True)
    ran = orch("submit", "hello", "--profile", "local", "--follow")
    assert (ran.code, "hello from rank 0 of 2" in ran.out) == (0, True), ran.err
    assert list(folder.iterdir()) == []


def test_no_module_of_the_current_folder_or_the_state_folder_is_imported(installed: Path, tmp_path: Path) -> None:
    folder, home, mark = tmp_path / "folder", tmp_path / "home", tmp_path / "imported"
    for place in (folder, home):
        place.mkdir(mode=0o700)
        for name in ("json", "asyncio", "subprocess", "click", "pydantic", "orchestrator"):
            (place / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\nraise SystemExit(9)\n")
    environment = {**os.environ, "PYTHONPATH": str(installed), "ORCH_HOME": str(home)}
    done = subprocess.run(
        [str(installed / "bin" / "orch"), "submit", "hello", "--profile", "local", "--follow"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, "hello from rank 0 of 2" in done.stdout) == (0, True), done.stderr
    assert not mark.exists()
