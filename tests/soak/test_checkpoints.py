"""Checkpoints whose writer was killed, or that were damaged: what is loaded is what was saved, or nothing."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.runs.files import checkpoints as outside
from orchestrator.training.checkpoint import format as checkpoints
from orchestrator.training.errors import CheckpointError
from tests.local.conftest import REPO

from .conftest import SEED, Soak
from .savers import is_right, state_of

pytestmark = pytest.mark.soak

STEPS = (1, 2, 3)
FILES = (checkpoints.STATE, checkpoints.MANIFEST, checkpoints.COMMIT)


def test_writers_killed_at_any_byte_and_moment(tmp_path: Path, soak: Soak) -> None:
    count = soak.of(100, 9)
    script = str(Path(__file__).with_name("savers.py"))
    done = subprocess.run(
        [sys.executable, script, str(tmp_path / "ckpt"), f"{SEED}", str(count)],
        env={**os.environ, "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trials = [json.loads(line) for line in done.stdout.splitlines()]
    soak.check(len(trials) == count, f"{len(trials)} of {count} trials")
    newest = 0
    for trial in trials:
        soak.check(trial["signal"] in (9, 25), f"the writer was not killed: {trial}")
        newest = max(newest, trial["promised"])
        soak.check((trial["found"] or 0) >= newest, f"step {newest} was saved, {trial['found']} is found: {trial}")
        soak.check(trial["found"] is None or trial["right"], f"a wrong load: {trial}")
        soak.check(not trial["torn"], f"a kill left a torn step under its name: {trial}")
    soak.end("checkpoint writers killed at a byte, a moment, a call", count)


def damage(chance: random.Random, folder: Path) -> str:
    """Do one thing that disks, copies and people do; says what it was."""
    step = chance.choice(STEPS)
    path, name = folder / checkpoints.name_of(step), chance.choice(FILES)
    file = path / name
    how = chance.choice(("flip", "flip", "flip", "truncate", "mix", "mix folder", "delete", "delete file", "grow"))
    other = folder / checkpoints.name_of(chance.choice([each for each in STEPS if each != step]))
    if how == "flip":
        data = bytearray(file.read_bytes())
        at, bit = chance.randrange(len(data)), chance.randrange(8)
        data[at] ^= 1 << bit
        file.write_bytes(data)
        return f"bit {bit} of byte {at} of {path.name}/{name}"
    if how == "truncate":
        size = chance.randrange(file.stat().st_size)
        os.truncate(file, size)
        return f"{path.name}/{name} cut to {size}"
    if how == "mix":
        names = chance.sample(FILES, chance.randint(1, 2))
        for each in names:
            shutil.copy(other / each, path / each)
        return f"{names} of {other.name} in {path.name}"
    if how == "mix folder":
        shutil.rmtree(path)
        shutil.copytree(other, path)
        return f"{other.name} copied as {path.name}"
    if how == "delete":
        shutil.rmtree(folder / checkpoints.name_of(STEPS[-1]))
        return "the newest deleted"
    if how == "delete file":
        file.unlink()
        return f"{path.name}/{name} deleted"
    file.write_bytes(file.read_bytes() + chance.randbytes(chance.randint(1, 100)))
    return f"{path.name}/{name} grown"


def test_damaged_checkpoints_are_not_loaded(tmp_path: Path, soak: Soak) -> None:
    origin, count = tmp_path / "origin", soak.of(300, 60)
    for step in STEPS:
        checkpoints.save(origin, state_of(step), checkpoints.Manifest(step=step, epoch=step))
    for number in range(count):
        folder = tmp_path / "work"
        shutil.copytree(origin, folder)
        what = f"{number}: {damage(soak.chance, folder)}"
        for path in sorted(folder.glob("step_*")):
            try:
                state, manifest = checkpoints.load(path)
            except CheckpointError:
                continue
            step = int(path.name.removeprefix("step_"))
            right = manifest.step == step and is_right(state, step)
            soak.check(right, f"{what}: {path.name} loads as step {manifest.step}, {state['step']}")
            verdict = outside.check(path, verify=True).verdict
            soak.check(verdict == "ok", f"{what}: {path.name} loads, and is said to be {verdict}")
        found = checkpoints.newest(folder, report=lambda _: None)
        if soak.check(found is not None, f"{what}: nothing is left to resume from") and found is not None:
            soak.check(is_right(checkpoints.load(found.path)[0], found.step), f"{what}: the newest is wrong")
        whole = [each.step for each in outside.listing(folder, verify=True) if each.is_whole]
        mine = [each.step for each in checkpoints.listing(folder) if each.problem is None]
        soak.check(whole == mine, f"{what}: `orch checkpoints --verify` takes {whole}, training {mine}")
        shutil.rmtree(folder)
    soak.end("checkpoints with a flipped bit, cut, mixed, deleted", count)
