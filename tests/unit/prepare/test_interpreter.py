"""A line runs with the Python with which it runs by hand; no interpreter is started to find out which that is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import UsageError
from orchestrator.prepare import interpreter
from orchestrator.prepare.interpreter import Interpreter, check_starts, of_shell


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def venv(folder: Path, *packages: str) -> Path:
    """A virtual environment as far as it is looked at; its python can't be started."""
    program(folder / "bin/python", "\x7fELF")
    (folder / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    for package in packages:
        (folder / "lib/python3.11/site-packages" / package).mkdir(parents=True)
    return folder


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    mine, active, conda = (venv(tmp_path / name) for name in ("mine", "active", "conda"))
    program(mine / "bin/torchrun", f"#!{mine}/bin/python\nimport torch\n")
    return {"PATH": f"{mine}/bin", "VIRTUAL_ENV": str(active), "CONDA_PREFIX": str(conda)}


def test_the_program_on_path_decides_then_the_active_environment_then_orchs_own(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    mine = f"{tmp_path}/mine/bin/python"
    assert of_shell("torchrun", environ) == Interpreter(mine, "torchrun on PATH")
    assert of_shell("python", environ) == Interpreter(mine, "python on PATH")
    assert of_shell("accelerate", environ) == Interpreter(f"{tmp_path}/active/bin/python", "$VIRTUAL_ENV")
    assert of_shell("", environ).why == "$VIRTUAL_ENV"
    assert of_shell("", {**environ, "VIRTUAL_ENV": "/gone"}).why == "$CONDA_PREFIX"
    assert of_shell("", {}) == of_shell("torchrun", {"PATH": "/gone"}) == Interpreter(sys.executable, "orch's own")
    launcher = f"{tmp_path}/mine/bin/torchrun"
    assert of_shell(launcher, {}) == Interpreter(mine, launcher)


@pytest.mark.parametrize(
    "text",
    [
        "#!{python}\n", "#!{python} -I\n", "#! {python}\n", "#!/usr/bin/env python\n", "#!/usr/bin/env -S python\n",
        "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\nimport re\n", "#!/bin/bash\nexec something\n",
    ],
)  # fmt: skip
def test_a_program_names_its_interpreter_in_any_of_the_usual_ways(
    tmp_path: Path, environ: dict[str, str], text: str
) -> None:
    python = f"{tmp_path}/mine/bin/python"
    program(tmp_path / "mine/bin/accelerate", text.replace("{python}", python))
    assert of_shell("accelerate", environ) == Interpreter(python, "accelerate on PATH")


def test_a_link_to_a_launcher_leads_to_its_environment(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/torchrun").symlink_to(tmp_path / "mine/bin/torchrun")
    assert of_shell("torchrun", {"PATH": f"{tmp_path}/bin"}).path == f"{tmp_path}/mine/bin/python"


def test_a_shell_script_called_python_is_asked(tmp_path: Path) -> None:
    program(tmp_path / "shims/python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program(tmp_path / "shims/torchrun", "#!/bin/sh\nexec something\n")
    environ = {"PATH": f"{tmp_path}/shims"}
    for name in ("python", "torchrun"):
        assert Path(of_shell(name, environ).path).samefile(sys.executable)


ODD = ["\x7fELF", '#!/bin/odd "\n', "#!\n", "#!/bin/sh\n" + "'" * 3 + "exec" + "'" + ' "odd\n']


@pytest.mark.parametrize("text", ODD)
def test_a_program_that_is_no_python_decides_nothing(tmp_path: Path, environ: dict[str, str], text: str) -> None:
    program(tmp_path / "bin/torchrun", text)
    assert of_shell("torchrun", {**environ, "PATH": f"{tmp_path}/bin"}).why == "$VIRTUAL_ENV"


def test_a_job_file_trains_with_orchs_own_torch_if_the_active_environment_has_none(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "_is_torch_here", lambda: True)
    assert of_shell("", environ, needs_torch=True).why == "orch's own; $CONDA_PREFIX has no torch"
    venv(tmp_path / "conda", "torch")
    assert of_shell("", environ, needs_torch=True).why == "$CONDA_PREFIX"
    (tmp_path / "active/pyvenv.cfg").write_text("home = /usr\nInclude-System-Site-Packages = true\n")
    assert of_shell("", environ, needs_torch=True).why == "$VIRTUAL_ENV"
    (tmp_path / "active/pyvenv.cfg").unlink()
    monkeypatch.setattr(interpreter, "_is_torch_here", lambda: False)
    assert of_shell("", environ, needs_torch=True).why == "$VIRTUAL_ENV"


def test_an_interpreter_that_hangs_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "PATIENCE", 0.1)
    python = program(tmp_path / "bin/python", "#!/bin/sh\nexec sleep 600\n")
    for attempt in (lambda: check_starts(str(python), tmp_path / "cache"), lambda: of_shell(str(python), {})):
        with pytest.raises(UsageError, match="does not answer like a Python interpreter") as caught:
            attempt()
        assert "--set profile.python=PATH" in str(caught.value)


def test_an_interpreter_is_started_once_whatever_the_number_of_submits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = program(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    started, ask = list[str](), interpreter._ask

    def counted(path: str) -> dict[str, Any]:
        started.append(path)
        return ask(path)

    monkeypatch.setattr(interpreter, "_ask", counted)
    for _ in range(3):
        check_starts(str(python), tmp_path / "cache")
    assert len(started) == 1
    check_starts(sys.executable, tmp_path / "cache")
    check_starts("/gone/python", tmp_path / "cache")
    assert len(started) == 1
