"""The child's side of a fork: from a copy of the launcher to a process as `python script` starts it."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import io
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
import types
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from typing import Any

from orchestrator.node.launcher.stacks import answer_with_stacks
from orchestrator.node.system.private import as_orch, give_back_umask

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class RankStart:
    """What one rank is to do; `argv` is exec'd, otherwise the program runs in this very process."""

    rank: int
    kind: str
    target: str
    args: tuple[str, ...]
    environment: dict[str, str]
    cwd: str
    error_file: str
    stack_file: str
    argv: tuple[str, ...] | None = None


def become_rank(start: RankStart, output: int, parent: int) -> None:
    """Cut this fork off from the launcher: output, session, signals, environment, death with the parent."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.set_wakeup_fd(-1)
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGCHLD,
        signal.SIGHUP,
        signal.SIGPIPE,
    ):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python starts up
    # A scheduler sends it to every process before the time limit; the agent makes a TERM of it. Workers inherit this.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    give_back_umask()
    os.environ.update(start.environment)
    os.chdir(start.cwd)


def run_rank(start: RankStart) -> int:
    """Run the program to its end; returns only the exit code of a program that can't be exec'd.

    A forked rank ends without the interpreter's teardown: gloo's threads may abort a run that has gone well
    while that destroys them (pytorch #179291). What a program may rely on is done before: other threads are
    waited for, atexit handlers run, open files are flushed.
    """
    if start.argv is not None:
        return _exec(start)
    with as_orch():
        answer_with_stacks(start.stack_file)
    code = _run_program(start)
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    _flush_open_files()
    os._exit(code)


def _flush_open_files() -> None:
    for found in gc.get_objects():
        if type(found) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            with contextlib.suppress(OSError, ValueError):  # closed, or its disk is full: as at any exit
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
    except BaseException as error:  # noqa: BLE001 (a rank's last words, whatever they are)
        _keep_error(start.error_file, error)
        return 1
    return 0


def _exec(start: RankStart) -> int:
    assert start.argv is not None
    for number in (signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(start.argv[0], start.argv)  # noqa: S606
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        print(f"orch: can't start {start.argv[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        return code


def _run_as_main(start: RankStart) -> None:
    """Run the program as the interpreter itself would: `__main__`, sys.argv, sys.path[0]."""
    main, own = types.ModuleType("__main__"), sys.modules["__main__"]
    main.__dict__["__builtins__"] = builtins
    if "__annotations__" in vars(own):  # not from Python 3.14 on
        vars(main)["__annotations__"] = {}
    sys.modules["__main__"] = main
    if start.kind == "module":
        import runpy  # noqa: PLC0415 (only this branch)

        sys.path[0] = os.getcwd()
        sys.argv = ["-m", *start.args]
        # Private, but the very function that `python -m` calls; run_module() restores __main__ too early.
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
    """Undo that every fork holds the same generators: separate processes start from separate seeds."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()  # not torch.seed(), which would wake CUDA


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _keep_error(path: str, error: BaseException) -> None:
    """Print the traceback without the launcher's frames, and write it where the launcher looks for it."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    sys.stdout.flush()
    print(text, end="", file=sys.stderr, flush=True)
    record: dict[str, Any] = {
        "type": type(error).__name__,
        "message": str(error)[:4000],
        "traceback": text[-20_000:],
        "time": time.time(),
    }
    # A full disk must not hide the traceback, which is in the log.
    with contextlib.suppress(OSError), as_orch(), open(path, "w", encoding="utf-8") as file:
        json.dump(record, file)


def _is_ours(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen ")
