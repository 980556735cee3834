"""Chooses the packages to install for a node's interpreter, and records the choice with the run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.environments.choice import Choice, NoChoiceError, choose
from orchestrator.environments.interpreter import Interpreter
from orchestrator.environments.lock import Lock, hashes_of
from orchestrator.environments.uv import NOBODYS, UvError, run_uv
from orchestrator.environments.wheels import WheelStore
from orchestrator.errors import OrchError
from orchestrator.protocol.files import write_json
from orchestrator.protocol.reading import MOST_RECORD, read_json
from orchestrator.runs.store import RunDir

ENVIRONMENT: Final = "environment.json"  # the file with the lock, which `orch submit` writes
PACKAGES: Final = "packages.json"  # the file with the chosen wheels, by the keys of interpreters


class LockError(OrchError):
    """The packages of a lock can't be installed for an interpreter."""


@dataclass(frozen=True)
class Packages:
    """The packages to install for one kind of interpreter."""

    choices: tuple[Choice, ...]

    @property
    def requirements(self) -> str:
        """Return the packages as a requirements file, each with the hash of its chosen wheel."""
        return "".join(f"{each.requirement}\n" for each in self.choices)

    def key(self, interpreter: Interpreter) -> str:
        """Return the environment's key: a hash of its packages, its interpreter, and the folders of other packages that
        it can import.
        """
        parts = ["1", self.requirements, interpreter.key, interpreter.base, interpreter.paths]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def record_lock(run: RunDir, lock: Lock, repeats: RunDir | None = None) -> None:
    """Record a run's lock. If the run repeats another run with the same lock, also copy the packages that were
    chosen for that run.
    """
    run.write(ENVIRONMENT, lock.to_json(), private=True)
    if repeats is not None and recorded_lock(repeats) == lock and (before := repeats.read(PACKAGES)) is not None:
        run.write(PACKAGES, before, private=True)


def recorded_lock(run: RunDir) -> Lock | None:
    """Return the lock that is recorded with the run, or None if its job has none."""
    data = run.read(ENVIRONMENT)
    return Lock.from_json(data) if data is not None else None


def packages_for(run: RunDir, lock: Lock, interpreter: Interpreter) -> Packages:
    """Return the packages to install for an interpreter, and record the choice with the run.

    If a choice is already recorded, it is reused. Raises LockError or WheelError if a package is not available.
    """
    store = WheelStore(run.root)
    known = run.read(PACKAGES) or {}
    if interpreter.key not in known:
        known[interpreter.key] = [asdict(each) for each in chosen(store, lock, interpreter)]
        run.write(PACKAGES, known, private=True)
    return Packages(tuple(Choice(**each) for each in known[interpreter.key]))


def chosen(store: WheelStore, lock: Lock, interpreter: Interpreter) -> tuple[Choice, ...]:
    """Return the wheels to install from a lock for an interpreter. Raises LockError or WheelError if a wheel is not
    available.

    If this machine has chosen wheels for the same lock and interpreter before, it reuses that choice. So a requirements
    file without hashes keeps the versions of its first resolution.
    """
    settings = {name: text for name, text in os.environ.items() if name.startswith("UV_")}
    where = None if lock.pylock else [lock.folder, settings]
    parts = [lock.text, lock.pylock, where, lock.extras, lock.groups, interpreter.key]
    name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    place = store.folder.parent / "chosen" / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):  # there is no earlier choice, or its file is damaged
        before = tuple(Choice(**each) for each in _rows(read_json(place, MOST_RECORD)))
        if all(each.url or store.is_whole(each.sha256) for each in before):
            return before
    allowed = {} if lock.pylock else hashes_of(lock, lock.name)
    try:
        found = choose(lock, lock.pylock or _compiled(lock, interpreter), interpreter, allowed)
    except NoChoiceError as error:
        raise LockError(f"{lock.name} does not fit the nodes' Python ({interpreter.words}): {error}") from None
    found = tuple(store.built(each, interpreter) if each.is_sdist else each for each in found)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_json(place, [asdict(each) for each in found], mode=0o600)
    return found


def _rows(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _compiled(lock: Lock, interpreter: Interpreter) -> str:
    """Resolve a requirements file to pylock.toml.

    Dependencies that the file does not list are added only if the environment can't import the interpreter's own
    packages.
    """
    folder, version = Path(lock.folder or NOBODYS), ".".join(map(str, interpreter.minor))
    alone = ["--no-deps"] if interpreter.paths else []
    try:
        return run_uv(
            "pip", "compile", "-", "--format", "pylock.toml", "--universal", "--python-version", version, "--no-header",
            "--no-annotate", "--python", sys.executable, *alone,
            cwd=folder if folder.is_dir() else NOBODYS, given=lock.text,
        )  # fmt: skip
    except UvError as error:
        raise LockError(
            f"{lock.name} does not resolve for Python {version}:\n{error}",
            "create the lock again on a machine where it can be installed",
        ) from None
