"""The controlling process is killed before every act of submit, cancel, reconcile and rm: nothing lost, nothing twice.

See crash.py for what an act is. Each point has a state folder of its own; afterwards the supervisor is started, as the
next command would, and what is left is looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click.testing
import pytest

from orchestrator.cli import orch as commands
from orchestrator.errors import OrchError
from orchestrator.looking.state import state_of
from orchestrator.node.system.processes import Process, identify, marked, send_signal, wait_gone
from orchestrator.runs.state import FINAL
from orchestrator.runs.store import RunDir, live_runs
from tests.local.conftest import REPO
from tests.local.test_runs import SLOW
from tests.patience import PATIENCE

from .conftest import FULL, Soak

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600 if FULL else 900)]  # also on a busy machine

CRASH = str(Path(__file__).with_name("crash.py"))
SECRET = "canary-5d1f0a-of-a-crashed-submit"  # noqa: S105

HELLO = """
name: hello
command: [sh, -c, 'echo "hello from rank $RANK"; exit 0']
secrets: [KEY]
"""
FAILING = "name: hello\ncommand: [sh, -c, 'echo \"hello from rank $RANK\"; exit 17']\n"


@dataclass
class Crashing:
    """One state folder, and the command line on it."""

    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "ORCH_HOME": str(self.home), "NO_COLOR": "1", "KEY": SECRET, "PYTHONPATH": str(REPO),
                "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip

    def crash(self, stop_at: int, what: str, *args: str) -> str:
        """Run a command up to its act number `stop_at` (0: to its end); how many acts it made, or where it died."""
        note = self.home.with_suffix(f".{stop_at}.txt")
        done = subprocess.run(
            [sys.executable, CRASH, str(note), str(stop_at), what, *args],
            env=self.environment, cwd=self.home.parent, capture_output=True, text=True, timeout=PATIENCE, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        assert note.exists(), f"{done.returncode} {done.stderr}"
        return note.read_text()

    def settle(self) -> None:
        """What the next command does: start the supervisor; until no run is live but the one beside, and it is gone."""
        deadline = time.monotonic() + PATIENCE
        beside = self.beside()
        if not beside:
            self.supervise()
        while {run.run_id for run in live_runs(self.home)} - beside and time.monotonic() < deadline:
            time.sleep(0.2)
        for run_id in beside:
            self.crash(0, "cli", "cancel", run_id, "--now")
            self.crash(0, "cli", "rm", run_id)
        deadline = time.monotonic() + PATIENCE
        while self.processes() and time.monotonic() < deadline:  # a supervisor without runs ends by itself, soon
            time.sleep(0.05)

    def beside(self) -> set[str]:
        """The run that is only there to keep a supervisor alive."""
        return {run.run_id for run in self.runs() if run.run_id.startswith("beside")}

    def supervise(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):  # then a run is live, and is found to be
            done = subprocess.run(
                [sys.executable, "-m", "orchestrator.supervisor"], env=self.environment, cwd=self.home.parent,
                timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, ""), done.stderr

    def runs(self) -> list[RunDir]:
        return [RunDir(path) for path in sorted((self.home / "runs").glob("[!.]*"))]

    def processes(self) -> list[Process]:
        """Whatever of this state folder still runs: it stands in the command line or in the environment."""
        found, mine = [], re.compile(re.escape(os.fsencode(self.home)) + rb"[/\0]")
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                text = Path(f"/proc/{name}/cmdline").read_bytes() + b"\0" + Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if mine.search(text) and int(name) != os.getpid() and (process := identify(int(name))):
                found.append(process)
        return found

    def clean_up(self) -> None:
        left = self.processes()
        for process in left:
            send_signal(process, 9)
        wait_gone(left, PATIENCE)
        shutil.rmtree(self.home, ignore_errors=True)


def ask(home: Path, *args: str) -> tuple[str, str]:
    """(what a command printed, what went wrong in it); an OrchError is an answer, nothing else is."""
    before = os.environ["ORCH_HOME"]
    os.environ["ORCH_HOME"] = str(home)
    try:
        result = click.testing.CliRunner().invoke(commands, args, standalone_mode=False)
    finally:
        os.environ["ORCH_HOME"] = before
    error = result.exception
    if error is not None and not isinstance(error, OrchError | click.ClickException):
        return result.output, f"orch {' '.join(args)}: {type(error).__name__}: {error}"
    if isinstance(error, OrchError) and (not error.message or "Traceback" in error.message):
        return result.output, f"orch {' '.join(args)}: no sentence: {error.message!r}"
    return result.output, ""


def problems_of(place: Crashing, scene: Scene) -> Iterator[str]:
    """Everything that must not be after a crash and the supervisor's work."""
    runs = place.runs()
    if len(runs) > 1:
        yield f"{len(runs)} runs from one command"
    output, problem = ask(place.home, "status", "-a", "--json")
    yield problem
    rows = json.loads(output) if not problem else []
    if [row["run_id"] for row in rows] != [run.run_id for run in runs]:
        yield f"status shows {[row['run_id'] for row in rows]}, there are {[run.run_id for run in runs]}"
    for row in rows:
        verdict = row["verdict"] or {}
        if row["state"] not in scene.expected:
            yield f"{row['run_id']} is {row['state']}: {verdict.get('reason')} {row['detail']}"
    if left := place.processes():
        yield f"still running: {[(p, Path(f'/proc/{p.pid}/cmdline').read_bytes()[-200:]) for p in left]}"
    for path in (*(place.home / "live").glob("*"), *(place.home / "runs").glob("*")):
        if not (place.home / "runs" / path.name / "run.json").exists():
            os.utime(path, (time.time() - 3600,) * 2)  # gc leaves alone what may be a submit's that is still at work
    yield ask(place.home, "gc")[1]
    if half := [path.name for path in (place.home / "runs").glob(".*")]:
        yield f"gc has left {half}"
    runs = place.runs()
    live = sorted(path.name for path in (place.home / "live").glob("*"))
    if live:
        yield f"still live: {live}"
    holders = [path for path in place.home.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    if holders:
        yield f"the secret was left in {holders}"
    for run in runs:
        yield from problems_of_run(place, run, half_removed=scene.name == "rm")


def problems_of_run(place: Crashing, run: RunDir, *, half_removed: bool) -> Iterator[str]:
    logs = sorted(run.path.glob("nodes/*/attempt_*/rank_*.log"))
    said = [log.read_text().count("hello from rank") for log in logs]
    state = state_of(run).state
    if len({log.name for log in logs}) != len(logs) or any(count > 1 for count in said):
        yield f"ranks ran twice: {logs} {said}"
    if state == "succeeded" and said != [1, 1] and not half_removed:
        yield f"succeeded, but the ranks said hello {said} times"
    if state not in FINAL:
        yield f"{run.run_id} is {state}"
    if stray := list(run.path.rglob("task.json")):
        yield f"a task file with its token was left: {stray}"
    if (stray := [path.name for path in run.path.rglob("*.tmp")]) and not half_removed:  # which the next rm removes
        yield f"left in the run directory: {stray}"
    if marked(run.run_id):
        yield f"processes with the run's mark: {marked(run.run_id)}"
    for args in (("why", run.run_id), ("logs", run.run_id, "-a"), ("status", run.run_id), ("cancel", run.run_id),
                 ("rm", run.run_id)):  # fmt: skip
        yield ask(place.home, *args)[1]
    if run.path.exists() or (place.home / "live" / run.run_id).exists():
        yield "rm left something of it"


@dataclass(frozen=True)
class Scene:
    """A command, what it is run on, and the states in which a run may end when it is killed on the way."""

    name: str
    prepare: Callable[[Crashing], tuple[str, ...]]  # returns the command
    expected: tuple[str, ...]


def _submit(job: Path, *, profile: str = "local") -> Callable[[Crashing], tuple[str, ...]]:
    return lambda place: ("cli", "submit", str(job), "-p", profile)


def _beside(job: Path, other: Path) -> Callable[[Crashing], tuple[str, ...]]:
    """A submit while another run is live, so that a supervisor looks at every half-made run at once."""

    def prepare(place: Crashing) -> tuple[str, ...]:
        place.crash(0, "cli", "submit", str(other), "-p", "local", "--name", "beside")
        return _submit(job)(place)

    return prepare


def _cancel(job: Path, *flags: str) -> Callable[[Crashing], tuple[str, ...]]:
    def prepare(place: Crashing) -> tuple[str, ...]:
        place.crash(0, "alone", "submit", str(job), "-p", "local")
        run = place.runs()[0]
        deadline = time.monotonic() + PATIENCE
        while sum("up" in path.read_text() for path in run.path.glob("nodes/0/attempt_0/rank_*.log")) < 2:
            assert time.monotonic() < deadline, "the ranks did not start"
            time.sleep(0.05)
        return ("cli", "cancel", run.run_id, *flags)

    return prepare


def _ended(template: Crashing, *command: str) -> Callable[[Crashing], tuple[str, ...]]:
    """A copy of a run that has ended, on which the supervisor (or `rm`) has not been yet."""

    def prepare(place: Crashing) -> tuple[str, ...]:
        shutil.copytree(template.home, place.home, symlinks=True)
        return tuple(part.replace("RUN", template.runs()[0].run_id) for part in command)

    return prepare


def make_template(home: Path, job: Path, *, finished: bool) -> Crashing:
    place = Crashing(home)
    place.crash(0, "alone", "submit", str(job), "-p", "local")
    deadline = time.monotonic() + PATIENCE
    while place.processes():
        assert time.monotonic() < deadline, "the run did not end"
        time.sleep(0.1)
    if finished:
        place.supervise()
    return place


def test_the_controller_is_killed_at_every_act(tmp_path: Path, soak: Soak) -> None:
    (tmp_path / "job").mkdir()
    hello, failing, slow = (tmp_path / "job" / f"{name}.yaml" for name in ("hello", "failing", "slow"))
    hello.write_text(HELLO)
    failing.write_text(FAILING)
    (tmp_path / "job" / "slow.py").write_text(SLOW)
    slow.write_text("name: hello\nscript: slow.py\nlauncher: exec\nlimits: {grace: 5}\n")
    good = make_template(tmp_path / "good", hello, finished=False)
    bad = make_template(tmp_path / "bad", failing, finished=False)
    done = make_template(tmp_path / "done", hello, finished=True)
    scenes = [
        Scene("submit", _submit(hello), ("succeeded", "failed")),
        Scene("submit beside a live run", _beside(hello, slow), ("succeeded", "failed")),
        Scene("cancel", _cancel(slow), ("cancelled",)),
        Scene("cancel --now", _cancel(slow, "--now"), ("cancelled",)),
        Scene("finish a success", _ended(good, "supervisor"), ("succeeded",)),
        Scene("finish a failure", _ended(bad, "supervisor"), ("failed",)),
        Scene("rm", _ended(done, "cli", "rm", "RUN"), ("succeeded", "failed")),
    ]
    points = []
    for scene in scenes:
        place = Crashing(tmp_path / f"count-{scene.name.replace(' ', '-')}")
        acts = int(place.crash(0, *scene.prepare(place)))
        place.settle()
        place.clean_up()
        points += [(scene, number) for number in range(1, acts + 1)]
        print(f"{scene.name}: {acts} acts")
    if not soak.full:
        few = {"submit": 3, "cancel": 1, "rm": 1}
        points = [
            (scene, number)
            for scene in scenes
            for number in soak.chance.sample([n for s, n in points if s is scene], few.get(scene.name, 1))
        ]

    def kill(point: tuple[Scene, int]) -> tuple[Crashing, str]:
        scene, number = point
        place = Crashing(tmp_path / f"{scene.name.replace(' ', '-')}-{number}")
        command = scene.prepare(place)
        where = place.crash(number, *command)
        if scene.name.startswith("cancel") and "cancel.json" not in str(list(place.home.rglob("cancel.json"))):
            place.crash(0, *command)  # it died before it had said anything: the user says it again
        place.settle()
        return place, where

    # Two at a time: most of each is waiting.
    with ThreadPoolExecutor(2) as pool:
        for (scene, number), (place, where) in zip(points, pool.map(kill, points), strict=True):
            try:
                for problem in problems_of(place, scene):
                    soak.check(not problem, f"{scene.name}, {number}, {where}: {problem}")
            finally:
                place.clean_up()
    soak.end("the controller killed before an act of submit, cancel, reconcile, rm", len(points))
