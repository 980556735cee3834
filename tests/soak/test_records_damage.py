"""Records cut at any byte, with bits flipped, lost: read as they are, healed, or refused in a sentence. Nothing worse.

And sixteen commands at once on one state folder, of which none may lose another's update.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.render import results
from orchestrator.cli.render import runs as render
from orchestrator.errors import OrchError
from orchestrator.looking import run as looking
from orchestrator.looking.run import grouped
from orchestrator.looking.state import state_of
from orchestrator.operations import runs
from orchestrator.runs.files.checkpoints import checkpoint_folder, listing
from orchestrator.runs.files.logs import Selection, Tail, beat_of, result_of
from orchestrator.runs.state import FINAL
from orchestrator.runs.store import RunDir, find_run
from orchestrator.supervisor.reconcile import reconcile
from tests.local.conftest import Orch
from tests.local.test_runs import SLOW, wait_for_line
from tests.patience import PATIENCE

from .conftest import Soak

pytestmark = pytest.mark.soak

LIVE = ("submitting", "pending", "starting", "running", "restarting", "stopping", "finishing", "?", "unreadable")
FAILING = """
import os, sys
print("rank", os.environ["RANK"], "in attempt", os.environ["ORCH_ATTEMPT"])
if os.environ["RANK"] == "1":
    raise ValueError("boom") if os.environ["ORCH_ATTEMPT"] == "1" else SystemExit(17)
"""


def damaged(chance: random.Random, folder: Path) -> list[str]:
    """Damage one to three of the files that orch wrote; what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "code" not in path.parts)
    done = []
    for path in chance.sample(files, chance.choice((1, 1, 1, 2, 3))):
        data, how = path.read_bytes(), chance.choice(("cut", "flip", "flip", "remove", "empty", "garble", "digit"))
        if how == "remove":
            path.unlink()
        elif how == "cut":
            path.write_bytes(data[: chance.randrange(len(data) + 1)])
        elif how == "empty" or not data:
            path.write_bytes(b"")
        elif how == "flip":
            bits = bytearray(data)
            bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
            path.write_bytes(bits)
        elif how == "garble":
            begin = chance.randrange(len(data))
            path.write_bytes(data[:begin] + chance.randbytes(chance.randint(1, 64)) + data[begin + 8 :])
        else:  # a value of another kind, in JSON that still reads: what a flipped bit can do at its worst
            path.write_bytes(_other_value(chance, data))
        done.append(f"{how} {path.relative_to(folder)}")
    return done


def _other_value(chance: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    number = chance.randrange(len(lines))
    try:
        record = json.loads(data if data.startswith(b"{\n") else lines[number])
    except ValueError:
        return data[::-1]
    if not isinstance(record, dict) or not record:
        return b"[]"
    place, name = record, chance.choice(sorted(record))
    while isinstance(place[name], dict) and place[name] and chance.random() < 0.7:
        place, name = place[name], chance.choice(sorted(place[name]))
    place[name] = chance.choice((None, "x", -1, 1.5, 1e300, [], {}, [None], True, "\0\x1b[31m", 10**30))
    if data.startswith(b"{\n"):
        return json.dumps(record).encode()
    lines[number] = json.dumps(record).encode()
    return b"\n".join(lines)


def looks(root: Path, run: RunDir) -> list[tuple[str, Callable[[], Any]]]:
    """Everything that a user can ask of a run, as far as it only looks."""
    state = state_of(run)
    return [
        ("status", lambda: render.status_lines([render.status_line(state, beat_of(run, state.attempt), time.time())])),
        ("status RUN", lambda: render.status_page(
            state, beat_of(run, state.attempt), result_of(run), str(run.path), time.time())),
        ("status --json", lambda: json.dumps([state.to_json(), looking.record_of(run)])),
        ("why", lambda: render.verdict_page(state)),
        ("why --json", lambda: json.dumps(state.verdict.to_json() if state.verdict else None)),
        ("logs", lambda: list(Tail(run, Selection(everything=True)).read(ended=True))),
        ("checkpoints", lambda: results.checkpoints_page(listing(checkpoint_folder(run), verify=False), "x")),
        ("exit code", lambda: looking.exit_code(state)),
    ]  # fmt: skip


def check(soak: Soak, what: str, act: Callable[[], Any]) -> Any:
    """Do it; anything but an answer or an OrchError with a sentence is a failure."""
    try:
        return act()
    except OrchError as error:
        soak.check(error.message.strip() and "Traceback" not in error.message, f"{what}: no sentence: {error!r}")
    except Exception as error:  # noqa: BLE001 (that is what is counted)
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
        soak.fail(f"{what}: {type(error).__name__}: {error} at {places}")
    return None


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file of a live run, unless its supervisor has just replaced it."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def template(home: Path, into: Path, run: RunDir) -> tuple[Path, str]:
    """A copy of the state folder with this one run."""
    (into / "runs").mkdir(parents=True)
    (into / "live").mkdir()
    shutil.copytree(run.path, into / "runs" / run.run_id, symlinks=True, copy_function=_copy_if_there)
    if (home / "live" / run.run_id).exists():
        (into / "live" / run.run_id).touch()
    (into / "index").write_text(f"{run.run_id}\n")
    return into, run.run_id


def test_damaged_records(orch: Orch, project: Any, tmp_path: Path, soak: Soak) -> None:
    folder = project(
        fail_py=FAILING, fail_yaml="script: fail.py\nretry: {user_error: 1}\nlauncher: exec\n",
        slow_py=SLOW, slow_yaml="script: slow.py\nlauncher: exec\n",
    )  # fmt: skip
    templates = []
    assert orch("submit", "hello", "-p", "local-2x2", "-f").code == 0
    reconcile(orch.home, orch.run())
    templates.append((*template(orch.home, tmp_path / "good", orch.run()), "succeeded"))
    assert orch("submit", str(folder / "fail.yaml"), "-p", "local", "-f").code == 100
    reconcile(orch.home, orch.run())
    templates.append((*template(orch.home, tmp_path / "bad", orch.run()), "failed"))
    live = orch.submit(str(folder / "slow.yaml"), "-p", "local")
    wait_for_line(live, "is up")
    templates.append((*template(orch.home, tmp_path / "live", live), "failed"))  # its agents will be gone
    assert orch("cancel", live.run_id, "--now").code == 0

    count = soak.of(1000, 150)
    for number in range(count):
        origin, run_id, outcome = templates[number % 3]
        home = tmp_path / "work"
        shutil.copytree(origin, home, symlinks=True)
        run = RunDir(home / "runs" / run_id)
        done = damaged(soak.chance, run.path)
        what = f"{number} ({outcome}): {', '.join(done)}"
        examine(soak, what, home, run, outcome)
        shutil.rmtree(home, ignore_errors=True)

    # Each record that can be told from the events, lost by itself, must not change the outcome.
    for origin, run_id, outcome in templates[:2]:
        for name in ("verdict.json", "plan.json", "handle.json", "code.json", "nodes/0/agent.json"):
            home = tmp_path / "work"
            shutil.copytree(origin, home, symlinks=True)
            run = RunDir(home / "runs" / run_id)
            before = state_of(run).verdict
            (run.path / name).unlink()
            soak.check(state_of(run).verdict == before, f"{name} lost: {state_of(run).verdict} instead of {before}")
            soak.check(state_of(run).state == outcome, f"{name} lost: {state_of(run).state} instead of {outcome}")
            shutil.rmtree(home)
    soak.end("a run's records cut, flipped, garbled, removed", count)


def examine(soak: Soak, what: str, home: Path, run: RunDir, outcome: str) -> None:
    """Look at a damaged run in every way, let the supervisor reconcile it, and remove it."""
    rows = check(soak, f"{what}: states", lambda: grouped(home, everything=True, limit=20))
    soak.check(rows is not None and len(rows) == 1, f"{what}: {rows}")
    for when in ("before", "after"):
        state = check(soak, f"{what}: state", lambda: state_of(run))
        if state is not None:
            soak.check(state.state in (*FINAL, *LIVE), f"{what}: state {state.state!r}")
            soak.check(
                outcome == "succeeded" or state.state != "succeeded", f"{what}: a failed run reads as {state.state}"
            )
            for name, act in check(soak, f"{what}: looks", lambda: looks(home, run)) or []:
                check(soak, f"{what}: {name} {when}", act)
        if when == "before":
            check(soak, f"{what}: reconcile", lambda: reconcile(home, run))
    check(soak, f"{what}: rm", lambda: runs.remove(home, run))


@pytest.mark.full("tests/local/test_crowds.py::test_crowds_of_cancel_rm_and_gc_leave_nothing_half")
def test_sixteen_commands_at_once(orch: Orch, project: Any, soak: Soak) -> None:
    folder = project(slow_py=SLOW, slow_yaml="script: slow.py\nlauncher: exec\n")
    old = [orch.submit("hello", "-p", "local", "--name", f"old{number}") for number in range(2)]
    slow = [orch.submit(str(folder / "slow.yaml"), "-p", "local", "--name", f"slow{number}") for number in range(2)]
    for run in old:
        looking.wait(run, timeout=PATIENCE)
    for run in slow:
        wait_for_line(run, "is up", rank=1)
    commands = [
        *([("submit", "hello", "-p", "local", "--name", f"new{number}", "--json")] for number in range(8)),
        *([("rm", run.run_id)] for run in old),
        *([("cancel", run.run_id)] for run in slow),
        *([("status", "-a", "--json")] for _ in range(4)),
    ]
    began = [
        subprocess.Popen(orch.argv(*args), env=orch.environment(), cwd=orch.cwd, text=True, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for (args,) in commands
    ]  # fmt: skip
    new = []
    for (args,), process in zip(commands, began, strict=True):
        out, err = process.communicate(timeout=PATIENCE)
        soak.check(process.returncode == 0, f"{args}: {process.returncode} {err}")
        soak.check("error in orch itself" not in err and "Traceback" not in err, f"{args}: {err}")
        if args[0] == "submit" and process.returncode == 0:
            new.append(json.loads(out)["run_id"])
        if args[0] == "status":
            json.loads(out)
    soak.check(len(set(new)) == 8, f"{len(set(new))} runs of 8 submits")
    for run_id in new:
        state = looking.wait(find_run(orch.home, run_id), timeout=PATIENCE)
        soak.check(state.state == "succeeded", f"{run_id}: {state.state} {state.verdict}")
    index = (orch.home / "index").read_text().split()
    soak.check(sorted(index) == sorted([r.run_id for r in (*old, *slow)] + new), f"the index holds {index}")
    soak.check(all(state_of(run).state == "cancelled" for run in slow), "a cancel was lost")
    soak.check(not any(run.path.exists() for run in old), "an rm was lost")
    left = {row[0].run_id for (row,) in grouped(orch.home, everything=True, limit=99)}
    soak.check(left == {*new, *(run.run_id for run in slow)}, f"status shows {left}")
    soak.end("commands at once on one state folder", len(commands))
