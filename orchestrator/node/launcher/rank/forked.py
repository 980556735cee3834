"""Turns a forked copy of the launcher into a rank. The rank execs its command, or runs its program in the forked
process as `python script` would.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import io
import os
import random
import re
import signal
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from typing import Any

from orchestrator.node.launcher.rank.error_file import note_end, write_error
from orchestrator.node.launcher.rank.exec_hook import files_of, with_hook
from orchestrator.node.launcher.rank.setup import set_up
from orchestrator.node.system.private import as_orch, give_back_umask
from orchestrator.protocol.reading import open_own, read_part
from orchestrator.protocol.schedulers import WARNINGS

PR_SET_PDEATHSIG = 1
SHELL = re.compile(r"(\S*/)?(ba|da|k|z|a)?sh")
# A trap command: the word, the action (quoted, or one word), and the signals.
TRAP = re.compile(
    r"""(?<![\w./$-])trap[ \t]+(?:--[ \t]+)?(?:'[^']*'|"(?:\\.|[^"\\])*"|[^\s'"])+((?:[ \t]+["']?\w+\b["']?)+)""",
    re.DOTALL,
)
MOST_SCRIPT = 1 << 20


@dataclass(frozen=True)
class RankStart:
    """The description of a rank to run. If `argv` is set, the forked process execs `argv`. Otherwise it runs the
    program itself.
    """

    rank: int
    kind: str
    target: str
    args: tuple[str, ...]
    environment: dict[str, str]
    cwd: str
    error_file: str
    stack_file: str
    argv: tuple[str, ...] | None = None
    archive: str = ""  # the path of node.pyz if the argv is a Python interpreter, which orch can set up
    hears_all: bool = False  # whether it gets the default actions of all signals: a batch file may have its own traps
    members: tuple[int, ...] = ()  # the ranks that this process starts, if it is another launcher
    defaults: dict[str, str] = field(default_factory=dict)  # variables that the job or the node may override
    withheld: dict[str, str] = field(default_factory=dict)  # see `change_rendezvous`
    debugged: dict[str, Any] | None = None  # the debugger's settings in a debugged run; {} if another rank is debugged

    @property
    def setup(self) -> dict[str, Any]:
        """Return the settings for `set_up`, which runs in the rank's interpreter before its program."""
        folder = self.folder if self.members else ""
        return {"stack_file": self.stack_file, "error_file": self.error_file, "folder": folder,
                "debugged": self.debugged, "withheld": self.withheld}  # fmt: skip

    @property
    def folder(self) -> str:
        """Return the folder of the attempt on this node."""
        return os.path.dirname(self.error_file)


def become_rank(start: RankStart, output: int, parent: int) -> None:
    """Give this forked process its own output, session, signal handlers and environment. From now on, the kernel kills
    this process when its parent process ends.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before `prctl` was called
        os._exit(1)
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # this line and the next restore Python's own defaults
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # A scheduler sends these signals to every process before the time limit, and the agent then sends SIGTERM to the
    # ranks. Child processes of the rank ignore them too.
    for number in WARNINGS:
        signal.signal(number, signal.SIG_IGN)
    give_back_umask()
    for name, value in start.defaults.items():
        os.environ.setdefault(name, value)
    os.environ.update(start.environment)
    os.chdir(start.cwd)


def run_rank(start: RankStart) -> int:
    """Run the program to its end, and exit. If the program can't be exec'd, return the exit code.

    A forked rank exits without the interpreter's teardown, in which gloo's threads may abort a successful run (pytorch
    #179291). The parts of the teardown on which programs rely are done before: threads are joined, atexit handlers run,
    and open files are flushed.
    """
    if start.argv is None or start.archive:
        for rank in start.members or (start.rank,):
            with as_orch(), contextlib.suppress(OSError):
                os.close(open_own(files_of(start.folder, rank)["stack_file"], os.O_WRONLY | os.O_CREAT))
    if start.argv is not None:
        return _exec(start)
    set_up(start.setup)
    code = _run_program(start)
    if code == 0:
        note_end(start.error_file)
    # This first tells thread pools, such as loky's and those of concurrent.futures, to end, and then joins all threads.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush_open_files()
    os._exit(code)


def _flush_open_files() -> None:
    for found in gc.get_objects():
        if type(found) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):  # the file is closed, or its disk is full
                found.flush()


def _run_program(start: RankStart) -> int:
    _reseed()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # as PYTHONUNBUFFERED would
    try:
        _run_as_main(start)
    except SystemExit as stop:
        return _exit_code(stop)
    except KeyboardInterrupt:
        return 130
    except BaseException as error:  # noqa: BLE001 (every error of the user's program is reported)
        _print_error(error)
        write_error(start.error_file, error, _own_frames(error))
        return 1
    return 0


def _exec(start: RankStart) -> int:
    assert start.argv is not None
    for number in (signal.SIGINT, signal.SIGPIPE, *(WARNINGS if start.hears_all else trapped(start.argv))):
        signal.signal(number, signal.SIG_DFL)
    environment = with_hook(os.environ, start.archive, start.setup) if start.archive else os.environ
    try:
        os.execvpe(start.argv[0], start.argv, environment)  # noqa: S606
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        print(f"orch: can't start {start.argv[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        return code


def trapped(argv: Sequence[str]) -> list[signal.Signals]:
    """Return those of the warnings for which a shell's program may have a trap. A shell can't trap a signal that was
    ignored when the shell started. Every other program can handle such a signal.
    """
    lines = "\n".join(_shell_texts(argv)).replace("\\\n", " ")
    traps = TRAP.findall(re.sub(r"(?m)(^|(?<=[\s;]))#.*", "", lines))
    names = {name.upper().removeprefix("SIG") for name in re.findall(r"\w+", " ".join(traps))}
    return [each for each in WARNINGS if names & {each.name[3:], str(int(each))}]


def _shell_texts(argv: Sequence[str]) -> list[str]:
    """Return the texts of a command line that are the program of a shell: words for `-c`, and shell scripts. Other
    files, such as train.py, are left out.
    """
    texts = {word: _text(word) for word in argv}
    if not SHELL.fullmatch(argv[0]):
        return [texts[argv[0]]] if _is_shell_script(texts[argv[0]]) else []
    own = next((word for word in argv[1:] if texts[word] or re.fullmatch(r"-\w*c\w*", word)), "")
    words = [word for word in argv[1:] if word == own or not texts[word] or _is_shell_script(texts[word])]
    return [texts[word] or word for word in words]


def _is_shell_script(text: str) -> bool:
    first = text.partition("\n")[0]
    return first.startswith("#!") and any(SHELL.fullmatch(word) for word in first[2:].split())


def _text(path: str) -> str:
    """Return the beginning of an ordinary file; "" if the word names no file."""
    try:
        return read_part(path, 0, MOST_SCRIPT).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def _run_as_main(start: RankStart) -> None:
    """Run the program as a Python interpreter would, with a new `__main__`, sys.argv and sys.path[0]."""
    main, own = types.ModuleType("__main__"), sys.modules["__main__"]
    main.__dict__["__builtins__"] = builtins
    if "__annotations__" in vars(own):  # this variable does not exist from Python 3.14 on
        vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    if start.kind == "module":
        import runpy

        sys.path[0] = os.getcwd()
        sys.argv = ["-m", *start.args]
        # `python -m` calls this private function too. run_module() would restore __main__ too early.
        runpy._run_module_as_main(start.target, alter_argv=True)  # type: ignore[attr-defined]
        return
    sys.argv = [start.target, *start.args]
    sys.path[0] = os.path.dirname(os.path.abspath(start.target))
    loader = SourceFileLoader("__main__", start.target)
    main.__dict__.update(__file__=os.path.abspath(start.target), __loader__=loader, __cached__=None)
    with open(start.target, "rb") as source:
        code = compile(source.read(), start.target, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102 (running the user's program is what a launcher is for)


def _reseed() -> None:
    """Seed the random generators again. Otherwise all forks would have the same state, unlike separate processes."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()  # not torch.seed(), which would initialize CUDA


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _print_error(error: BaseException) -> None:
    """Print the traceback of an error, without the launcher's frames."""
    sys.stdout.flush()
    text = "".join(traceback.format_exception(type(error), error, _own_frames(error)))
    print(text, end="", file=sys.stderr, flush=True)


def _own_frames(error: BaseException) -> types.TracebackType | None:
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _is_ours(filename: str) -> bool:
    return filename == _is_ours.__code__.co_filename or filename.startswith("<frozen ")
