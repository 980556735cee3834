"""A machine that answers each request with something else: the run ends, and each error is a sentence of its host."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.mirror.contents import missing_on
from orchestrator.backends.mirror.given import newest_there
from orchestrator.backends.mirror.watching import Source, finish
from orchestrator.errors import BackendError, OrchError
from orchestrator.node.server.server import HOME
from orchestrator.protocol.json_text import parse_json
from orchestrator.runs.store import RunDir
from orchestrator.transport.answers import is_answer
from tests.machines import Asked, FakeMachine

from .conftest import Soak

pytestmark = pytest.mark.soak

VERBS = (
    "poll_changes",
    "read_files",
    "steps",
    "list_outputs",
    "missing",
    "saved",
    "remove",
)
NUMBERS = (-1, 0, 1 << 31, 1 << 63, 10**30, 1e300, float("nan"), float("inf"), True, None, "x", [], {})
WORDS = ("", "\ud800", "../../../escaped", "/etc/passwd", "a\0b", "x" * 100_000, "\x1b[31m", "COMMIT", "code", 7, None)
DATA: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "half": lambda _, data: data[: len(data) // 2],
    "nothing": lambda *_: b"",
    "brackets": lambda *_: b"[" * 200_000,
    "more": lambda _, data: data + b"more",
    "noise": lambda chance, data: chance.randbytes(len(data)),
    "NaN": lambda *_: b"[NaN, Infinity]",
}


def _other_values_of(chance: random.Random, data: bytes) -> bytes:
    try:
        return json.dumps(changed(chance, parse_json(data), 0.3)).encode()
    except ValueError:
        return data[::-1]


DATA["other values"] = _other_values_of


def changed(chance: random.Random, value: Any, share: float) -> Any:
    """Return the value with some of what is in it replaced, names of fields too."""
    if chance.random() < share / 3:
        return chance.choice((*NUMBERS, *WORDS))
    if isinstance(value, dict):
        names = [chance.choice(WORDS[:-2]) if chance.random() < share / 5 else name for name in value]
        return dict(zip(names, (changed(chance, each, share) for each in value.values()), strict=True))
    if isinstance(value, list):
        found = [changed(chance, each, share) for each in value]
        return found * chance.choice((0, 1, 1, 1, 2)) if chance.random() < share else found
    if chance.random() < share:
        return chance.choice(WORDS if isinstance(value, str) else NUMBERS)
    return value


class Hostile(FakeMachine):
    """A machine that answers some requests of one kind with something else; what no session lets through is refused."""

    def __init__(self, chance: random.Random, verb: str) -> None:
        super().__init__()
        self.chance, self.verb, self.done = chance, verb, list[str]()

    @property
    def host(self) -> str:
        return "n1"

    def ask(self, do: str, payload: bytes = b"", *, sink: Any = None, most: int = 1 << 30, **values: Any) -> Any:
        return Odd(self, do, payload, sink, values, most)


class Odd(Asked):
    """A request to such a machine."""

    def __init__(self, session: Hostile, do: str, payload: bytes, sink: Any, values: dict[str, Any], most: int) -> None:
        super().__init__(session, do, payload, sink, values)
        self.machine, self.most = session, most

    def answer(self) -> Any:
        reply, data = super().answer()
        chance = self.machine.chance
        if self.verb != self.machine.verb or chance.random() < 0.2:
            return reply, data
        if data and chance.random() < 0.6:
            name = chance.choice([*DATA])
            self.machine.done.append(name)
            data = DATA[name](chance, data)
        else:
            reply = changed(chance, reply, 0.4)
            self.machine.done.append(f"{reply!r:.200}")
        if len(data) > self.most or not is_answer(reply, self.verb):  # as transport/rpc.py, which ends the conversation
            raise BackendError(f"n1: it does not answer {self.verb} as orch's server would", transient=True)
        return reply, data


def a_run(tmp_path: Path) -> RunDir:
    """Write a run that has ended on a machine, whose folder is beside it."""
    run = RunDir(tmp_path / "here/runs/r-1")
    run.path.mkdir(parents=True)
    run.write("run.json", {"nnodes": 1, "kind": "ssh", "profile": {"workdir": str(tmp_path / "orch")}})
    there = tmp_path / "orch/runs/r-1"
    run.write("plan.json", {"tasks": [{"code_dir": str(there / "code")}], "job": {"outputs": {}}})
    files = {
        "code/model.pt": os.urandom(600_000), "code/log": b"words", "outputs/notes": b"notes", "result.json": b"{}",
        "metrics.jsonl": b'{"step": 1, "loss": 1}\n', "nodes/0/events.jsonl": b'{"kind": "go", "node": 0}\n',
        "nodes/0/attempt_0/rank_0.log": b"hello\n" * 100, "nodes/0/attempt_0/beat_0": b"{}",
    }  # fmt: skip
    for name, data in files.items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(data)
    return run


def acts(machine: Hostile, run: RunDir, home: Path) -> dict[str, Callable[[], object]]:
    """Return what the controlling side asks of a machine whose run has ended, by names."""
    source = Source("n1", (0,), lambda: machine)  # type: ignore[arg-type,return-value]
    return {
        "newest_there": lambda: newest_there(machine, run),  # type: ignore[arg-type]
        "missing_on": lambda: missing_on(machine, str(home / "orch"), ["0" * 64], "code"),
        "finish": lambda: finish(run, [source]),
    }


def test_whatever_a_machine_answers_its_run_ends_and_nothing_else_is_written(soak: Soak, tmp_path: Path) -> None:
    assert set(VERBS) <= set(HOME)
    count = soak.of(2000, 60)
    for number in range(count):
        chance = soak.chance if soak.full else random.Random(number)
        home = tmp_path / str(number)
        run, machine = a_run(home), Hostile(chance, VERBS[number % len(VERBS)])
        before = set(home.iterdir())
        for name, act in acts(machine, run, home).items():
            what = f"{number}: {name} with {machine.verb} of {machine.done}"
            try:
                act()
            except OrchError as error:
                soak.check(error.message.startswith(("n1: ", str(run.path))), f"{what}: {error.message}")
            except Exception as error:  # noqa: BLE001 (that is what is counted)
                soak.fail(f"{what}: {error!r:.500}")
        soak.check(set(home.iterdir()) == before, f"{machine.done}: it wrote {set(home.iterdir()) - before}")
        shutil.rmtree(home)
    soak.end("answers of a machine replaced by others, and what follows from each", count)
