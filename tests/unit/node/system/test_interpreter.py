"""The order of interpreters: python3, the profile's after its setup lines, the login shell's, and the usual folders."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.node.system import interpreter
from orchestrator.node.system.interpreter import InterpreterError, ask_interpreter, first_python

# Imitates an interpreter of Python 3.6: of the programs that orch gives it, it understands only the judge.
OLD = f"""#!{sys.executable} -ISE
import sys
code = sys.argv[sys.argv.index("-c") + 1]
sys.argv, sys.version_info = ["-c", *sys.argv[sys.argv.index("-c") + 2 :]], (3, 6, 8, "final", 0)
exec(code)
"""


class Home:
    """A home folder, a PATH that has sh and its tools but no python3, and a login shell."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.path = folder, folder / "path"
        self.path.mkdir()
        for tool in ("sh", "bash", "timeout", "tail", "printf"):
            (self.path / tool).symlink_to(str(shutil.which(tool)))
        find = interpreter._FIND.replace(interpreter._PATTERNS, f"{folder}/opt/*/bin")
        monkeypatch.setattr(interpreter, "_FIND", find)
        # The machine's own start files would add its own interpreters.
        self.shell = self.python("shell", '#!/bin/sh\n[ ! -e ~/.login ] || . ~/.login\neval "$2"\n')

    def python(self, path: str, text: str = "") -> str:
        """Make an interpreter: a new one, or the given program."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text or f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        file.chmod(0o755)
        return str(file)

    def run(self, python: str | None = None, *setup: str, shell: str = "") -> tuple[list[str], int]:
        """Return the lines of the command as a login shell runs it, and its exit code."""
        program = ["-I", "-S", "-c", "import sys; print(*sys.argv[1:])", "a b", "it is new"]
        argv = first_python(program, python, setup, "M")
        done = subprocess.run(
            [shell or "/bin/sh", "-c", shlex.join(argv)], capture_output=True, text=True, check=False,
            env={"HOME": str(self.folder), "PATH": str(self.path), "SHELL": shell or self.shell},
        )  # fmt: skip
        return done.stdout.splitlines(), done.returncode


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path, monkeypatch)


NEW = "a b it is new"


def test_python3_of_path_comes_first(home: Home) -> None:
    home.python("path/python3")
    home.python("other", OLD)
    assert home.run(str(home.folder / "other")) == ([NEW], 0)


def test_an_old_python3_is_named_and_the_profiles_comes_next(home: Home) -> None:
    home.python("path/python3", OLD)
    home.python("venv/bin/python")
    assert home.run("~/venv/bin/python") == (["M old 3.6 python3", NEW], 0)


@pytest.mark.parametrize("named", [None, "pythonx"])
def test_the_setup_lines_come_before_the_profiles_interpreter(home: Home, named: str | None) -> None:
    home.python("path/python3", OLD)
    home.python(f"module/{named or 'python3'}")
    setup = ('echo "it is loaded!"', f"module() {{ export PATH={home.folder}/module:$PATH; }}; module load torch")
    assert home.run(named, *setup) == (["M old 3.6 python3", NEW], 0)


def test_setup_lines_that_fail_leave_the_login_shells_path_and_then_the_usual_folders(home: Home) -> None:
    assert home.run(None, "module load nothing") == ([], 127)
    old = home.python("opt/python/bin/python3.6", OLD)
    home.python("opt/python/bin/python3.11")
    assert home.run(None, "module load nothing") == ([f"M old 3.6 {old}", NEW], 0)
    home.python("login/python3", OLD)
    (home.folder / ".login").write_text(f"echo hello; PATH={home.folder}/login:$PATH; printf title")
    found = [f"M old 3.6 {home.folder}/login/python3", f"M old 3.6 {old}", NEW]
    assert home.run(None, "if then") == (found, 0)


@pytest.mark.parametrize("shell", ["bash", "dash", "tcsh", "zsh", "fish"])
def test_every_login_shell_passes_the_command_on_and_has_its_own_start_files(home: Home, shell: str) -> None:
    if (path := shutil.which(shell)) is None:
        pytest.skip(f"this machine has no {shell}")
    home.python("path/python3", OLD)
    home.python("login/python3")
    path_of_fish = f"status is-login; and set -gx PATH {home.folder}/login $PATH"
    add = {"tcsh": f"setenv PATH {home.folder}/login:$PATH", "fish": path_of_fish}
    file = {"bash": ".bash_profile", "tcsh": ".login", "zsh": ".zprofile", "fish": ".config/fish/config.fish"}
    start = home.folder / file.get(shell, ".profile")
    start.parent.mkdir(parents=True, exist_ok=True)
    start.write_text(add.get(shell, f"export PATH={home.folder}/login:$PATH") + "\n")
    assert home.run(None, shell=path) == (["M old 3.6 python3", NEW], 0)
    assert home.run("nopython", "echo 'it''s'; echo \"no!\"\nfalse", shell=path)[0][-1:] == [NEW]


def test_without_a_mark_nothing_is_printed_but_the_programs_own_output(home: Home) -> None:
    home.python("path/python3", OLD)
    argv = first_python(["-c", "print('own')"], home.python("new"), ())
    env = {"PATH": str(home.path), "HOME": str(home.folder)}
    assert subprocess.run(argv, capture_output=True, text=True, check=True, env=env).stdout == "own\n"


def test_an_interpreter_is_asked_after_the_setup_lines_and_a_line_that_fails_is_named(home: Home) -> None:
    home.python("module/pythonx")
    ask = ("-c", "print('{}')")
    with pytest.raises(InterpreterError, match="can't be started: No such file"):
        ask_interpreter("pythonx", *ask)
    assert ask_interpreter("pythonx", *ask, setup=("echo loading", f"PATH={home.folder}/module:$PATH")) == {}
    with pytest.raises(InterpreterError, match="setup line 1 failed: module load nothing"):
        ask_interpreter("pythonx", *ask, setup=("module load nothing",))


def test_the_text_is_what_every_shell_passes_on() -> None:
    words = first_python([], None, ("echo 'a!b\\c'\n",), "M")
    assert not {"!", "\n"} & set("".join(words))
