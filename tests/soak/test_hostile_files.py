"""Every file of a run's folder in turn is something else: no command hangs, fails without a sentence, or follows it.

The ranks of a run, containers and machines write these files, and may put anything in their place.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest

from orchestrator.runs.store import RunDir
from tests.unit.views.runs_made import FAILED, beat, begin, end, make, tell

from . import commands
from .conftest import Soak

pytestmark = pytest.mark.soak

SECRET = "SECRET-of-another-file"  # noqa: S105 (no password)
RUN = "train-abcdef"
NOBODY = 1 << 22  # beyond every process's number
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status",), ("status", "-a", "--json"), ("status", RUN), ("why", RUN), ("why", RUN, "--json"),
    ("logs", RUN, "--all", "--tail", "3"), ("logs", RUN, "--raw", "--tail", "1"), ("logs", RUN, "--grep", "x", "-a"),
    ("events", RUN), ("metrics", RUN), ("metrics", RUN, "--json"), ("checkpoints", RUN), ("outputs", RUN),
    ("plot", RUN, "loss"), ("best", RUN, "-m", "loss"), ("diff", RUN, RUN), ("usage", RUN), ("bundle", RUN),
    ("pull", RUN, "--to", "pulled"), ("ui", RUN, "--export", "pages"), ("export", "torchrun", RUN),
    ("cancel", RUN, "--now"), ("reconcile", RUN), ("gc", "--dry-run"), ("rm", RUN),
)  # fmt: skip


# -- a run, and what a hostile program makes of one of its files


def a_run(home: Path, *, is_live: bool) -> RunDir:
    """Write a run with a file of each kind that a run's folder has."""
    run = make(home, RUN, job={"name": "train", "script": "train.py"})
    run.write("plan.json", {"tasks": [{"code_dir": str(run.path / "code")}], "job": {"outputs": {}}})
    run.write("handle.json", {"state": "submitted", "agents": {"0": {"pid": NOBODY, "started": 1}}})
    begin(run)
    for rank in range(2):
        beat(run, rank, step=5, total=10, phase="train", loss=0.5, time=120.0)
    own, attempt = run.node(0), run.node(0) / "attempt_0"
    report = {"tail": ["last words"], "error": {"type": "ValueError", "message": "boom", "traceback": "boom"}}
    tell(run, 0, "rank_exit", 150.0, rank=1, code=1, signal=None, attempt=0, **report)
    sample = {"time": 120.0, "mono": 1.0, "attempt": 0, "cpu": 0.5, "ranks": [], "gpus": []}
    step = {"step": 10, "epoch": 1, "world_size": 2, "time": 130.0, "metric": {"loss": 0.5}, "run": RUN, "format": 1}
    state = {"state.pt": {"bytes": 5, "sha256": sha256(b"state").hexdigest()}}
    manifest = json.dumps({**step, "files": state})
    texts = {
        run.path / "metrics.jsonl": '{"kind": "train", "step": 1, "loss": 0.5, "time": 120.0}\n' * 2,
        run.path / "result.json": '{"accuracy": 0.9, "data": "mnist"}',
        run.path / "code.json": json.dumps({"files": {"train.py": ["f", sha256(b"code").hexdigest()]}}),
        run.path / "code/train.py": "code",
        run.path / "outputs/notes.txt": "notes",
        run.path / "checkpoints/step_00000010/state.pt": "state",
        run.path / "checkpoints/step_00000010/manifest.json": manifest,
        run.path / "checkpoints/step_00000010/COMMIT": sha256(manifest.encode()).hexdigest() + "\n",
        own / "agent.json": json.dumps({"pid": NOBODY, "started": 1, "host": os.uname().nodename, "start": 0}),
        own / "agent.log": "agent\n", own / "launcher.log": "launcher\n", own / "start_0": '{"pid": 0, "started": 0}',
        own / "samples.jsonl": json.dumps(sample) + "\n",
        attempt / "rank_0.log": "hello\n\r 50%\r100%\nx = 1\n", attempt / "rank_1.log": "boom\n",
        attempt / "rank_1.log.1": "older\n", attempt / "error_1.json": json.dumps(report["error"]),
        attempt / "stacks_0.txt": "Current thread 0x1 (most recent call first):\n", attempt / "flight_0": "x.",
        attempt / "result.json": "{}", attempt / "result_0.json": "[1]",
    }  # fmt: skip
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if not is_live:
        end(run, FAILED)
    return run


def others_version(data: bytes) -> bytes:
    """Return what a reader would show, were it in the place of this file: as this one, with another's words."""
    text = data.decode()
    if text.lstrip().startswith(("{", "[")):
        return re.sub(r': "[^"]*"', f': "{SECRET}"', text).encode()
    return f"{SECRET}\n".encode() * 3


def link(path: Path, private: Path) -> None:
    path.unlink()
    path.symlink_to(private)


def link_of_its_folder(path: Path, private: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.symlink_to(private.parent)


def fifo(path: Path, _: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_socket(path: Path, _: Path) -> None:
    path.unlink()
    folder = os.open(path.parent, os.O_RDONLY)  # its own path may be too long for a socket
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def device(path: Path, _: Path) -> None:
    path.unlink()
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero, which never ends
    except PermissionError:  # only root makes devices
        path.symlink_to("/dev/zero")


def folder(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()


def zeros(path: Path, _: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 1 << 30)  # sparse


def brackets(path: Path, _: Path) -> None:
    path.write_bytes(b"[" * 200_000)


def nan(path: Path, _: Path) -> None:
    path.write_text(re.sub(r"(?<=[:\[ ])\d[\d.]*", "NaN", path.read_text()))


def surrogates(path: Path, _: Path) -> None:
    path.write_text(re.sub(r': "', r': "\\ud800\\udcff', path.read_text()))


def half(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


KINDS: tuple[Callable[[Path, Path], None], ...] = (
    link, link_of_its_folder, fifo, a_socket, device, folder, zeros, brackets, nan, surrogates, half,
)  # fmt: skip


# -- the commands


@contextmanager
def command_runner() -> Iterator[Callable[[Path, tuple[str, ...]], tuple[int | None, bytes]]]:
    """Yield a function that runs a command in a state folder: its exit code, None after the limit, and its words."""
    program = subprocess.Popen(
        [sys.executable, "-m", commands.__name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdin is not None
    assert program.stdout is not None

    def run(home: Path, argv: tuple[str, ...]) -> tuple[int | None, bytes]:
        out = home / "said"
        argv = tuple(str(home / word) if word in ("pulled", "pages") else word for word in argv)
        argv = (*argv, "-o", str(home / "bundle.tgz")) if argv[0] == "bundle" else argv
        print(json.dumps({"argv": argv, "home": str(home), "out": str(out)}), file=program.stdin, flush=True)
        return json.loads(program.stdout.readline()), out.read_bytes()

    with program:
        yield run
        program.stdin.close()


def test_whatever_is_in_the_place_of_a_file_commands_end_and_show_nothing_of_others(soak: Soak, tmp_path: Path) -> None:
    templates = {is_live: tmp_path / f"template_{is_live}" for is_live in (False, True)}
    for is_live, home in templates.items():
        a_run(home, is_live=is_live)
    private = tmp_path / "private"
    shutil.copytree(templates[False] / "runs" / RUN, private)
    names = sorted(str(path.relative_to(private)) for path in private.rglob("*") if path.is_file())
    for name in names:
        (private / name).write_bytes(others_version((private / name).read_bytes()))
    cases = [
        (name, kind, is_live)
        for name in names
        for kind in KINDS
        for is_live in templates
        if _applies(name, kind, is_live)
    ]
    if not soak.full:
        chance = random.Random(7)  # the same in each test run
        cases = [(each, KINDS[at % len(KINDS)], chance.random() < 0.3) for at, each in enumerate(names)]
        cases = [(name, kind, live and name != "verdict.json") for name, kind, live in cases]
        cases = [case for case in cases if _applies(*case)]
    count = 0
    with command_runner() as run:
        for number, (name, kind, is_live) in enumerate(cases):
            home = tmp_path / f"work_{number}"
            shutil.copytree(templates[is_live], home, symlinks=True)
            kind(home / "runs" / RUN / name, private / name)
            some = COMMANDS if soak.full else random.Random(number).sample(COMMANDS[:-1], 2)
            for argv in some:
                count += 1
                examine(
                    soak, f"{name} is {kind.__name__}{' (live)' * is_live}: {' '.join(argv)}", run(home, argv), home
                )
            shutil.rmtree(home)
    soak.end("files of a run replaced by what is none, and each command", count)


def _applies(name: str, kind: Callable[[Path, Path], None], is_live: bool) -> bool:
    """Leave out what a run that goes on has not, and the run's own folder as a link, as some profiles have it."""
    return not (is_live and name == "verdict.json") and not (kind is link_of_its_folder and "/" not in name)


def examine(soak: Soak, what: str, said: tuple[int | None, bytes], home: Path) -> None:
    code, words = said
    text = words[-20_000:].decode("utf-8", "replace")
    soak.check(code is not None, f"{what}: it hangs")
    soak.check(code is None or code >= 0, f"{what}: it died of signal {code}")
    soak.check("Traceback (most recent" not in text and "error in orch itself" not in text, f"{what}: {text}")
    made = [home / "said", home / "bundle.tgz", *(home / "pulled").rglob("*"), *(home / "pages").rglob("*")]
    shown = [path.name for path in made if path.is_file() and SECRET.encode() in _content(path)]
    soak.check(not shown, f"{what}: another file's words are in {shown}")
    for path in (home / "pulled", home / "pages"):
        shutil.rmtree(path, ignore_errors=True)
    (home / "bundle.tgz").unlink(missing_ok=True)


def _content(path: Path) -> bytes:
    data = path.read_bytes()[-(8 << 20) :]
    return gzip.decompress(data) if path.suffix == ".tgz" else data
