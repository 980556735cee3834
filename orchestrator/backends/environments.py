"""Installs a run's environment on its machines. Missing wheels are sent, and each machine installs the environment
once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final

from orchestrator.backends.base import Finding
from orchestrator.backends.hosts import MachinesError, all_of, on_all, on_each
from orchestrator.backends.mirror.contents import send_contents
from orchestrator.backends.settings import CACHE_DAYS
from orchestrator.errors import BackendError, OrchError
from orchestrator.node.environments.folder import interpreter as interpreter_of
from orchestrator.protocol.events import Environment
from orchestrator.protocol.quantities import size
from orchestrator.protocol.task import NodeTask
from orchestrator.runs.store import RunDir
from orchestrator.transport.machine import Machine

if TYPE_CHECKING:  # most jobs have no lock
    from orchestrator.environments.interpreter import Interpreter
    from orchestrator.environments.lock import Lock
    from orchestrator.environments.packages import Packages
    from orchestrator.environments.wheels import WheelStore

LOOK_SECONDS: Final = 600.0  # for a look at all files of an environment, which may be on a slow network


@dataclass(frozen=True)
class Wanted:
    """An environment to install on a machine."""

    interpreter: Interpreter
    packages: Packages

    @property
    def key(self) -> str:
        """Return the environment's name."""
        return self.packages.key(self.interpreter)


@dataclass(frozen=True)
class Found:
    """A machine's environment: its folder, whether it is complete, whether it was just installed, and how many
    seconds that took.
    """

    folder: str
    is_whole: bool
    made: bool = False
    seconds: float = 0.0


def with_environment(
    run: RunDir, tasks: tuple[NodeTask, ...], machines: Mapping[int, Machine], workdir: str, *, shared: bool = False
) -> tuple[NodeTask, ...]:
    """Install the run's environment on all machines. Return the tasks with the environment's interpreter.

    Raises BackendError, which names each machine that can't have the environment; then no machine installs it. With
    `shared`, the machines have one common workdir, and the environment is installed once. If there is only one machine,
    its environment is for all tasks.
    """
    if run.record().job.environment is None:
        return tasks
    try:
        return _with_environment(run, tasks, machines, workdir, shared=shared)
    except BackendError:
        raise
    except OrchError as error:  # this machine can't get the wheels
        raise BackendError(error.message, error.hint) from error


def _with_environment(
    run: RunDir, tasks: tuple[NodeTask, ...], machines: Mapping[int, Machine], workdir: str, *, shared: bool
) -> tuple[NodeTask, ...]:
    from orchestrator.environments.packages import recorded_lock
    from orchestrator.environments.wheels import WheelStore

    lock = recorded_lock(run)
    if lock is None:
        raise BackendError(f"the copy of the lock file in run {run.run_id} is missing", "submit the job file again")
    wanted = _packages(run, lock, tasks, machines)
    found = on_each(lambda node, machine: _find(machine, workdir, wanted[node]), machines)
    lacking = [node for node in sorted(found) if not found[node].is_whole]
    if lacking:
        try:
            uvs = _supplies(run, [wanted[node] for node in lacking])
        except OrchError as error:
            refused = {node: BackendError(f"{machines[node].name}: {error.message}", error.hint) for node in lacking}
            raise MachinesError(error.message, error.hint, refused) from error
        store = WheelStore(run.root)

        def install(node: int, machine: Machine) -> Found:
            want = wanted[node]
            return _install(machine, workdir, store, want, uvs[want.interpreter.key])

        # If the machines share the folder, the first machine installs the environment, and the others only check it.
        for group in [lacking[:1], lacking[1:]] if shared else [lacking]:
            found |= on_each(install, {node: machines[node] for node in group})
    for node, each in sorted(found.items()):
        run.append_event(Environment(of=node, start=tasks[0].start, host=machines[node].name, **asdict(each)))
    alone = found[min(found)]
    folders = [found.get(task.node_rank, alone).folder for task in tasks]
    return tuple(
        replace(task, environment=folder, python=interpreter_of(folder))
        for task, folder in zip(tasks, folders, strict=True)
    )


def _packages(
    run: RunDir, lock: Lock, tasks: tuple[NodeTask, ...], machines: Mapping[int, Machine]
) -> dict[int, Wanted]:
    """Return the packages to install on each machine, chosen for its interpreter."""
    from orchestrator.environments.interpreter import Interpreter
    from orchestrator.environments.packages import packages_for

    def ask(node: int, machine: Machine) -> Interpreter:
        answer, _ = machine.call(
            "find_interpreter", python=tasks[node].python, setup=list(tasks[node].setup), version=lock.python,
            system_packages=lock.system_packages,
        )  # fmt: skip
        try:
            return Interpreter.of(answer["found"])
        except ValueError as error:
            raise BackendError(
                f"{machine.name}: its description of the Python interpreter is not valid: {error}"
            ) from error

    interpreters, failed = on_all(ask, machines)
    chosen: dict[str, Packages | OrchError] = {}
    for node, interpreter in sorted(interpreters.items()):
        if interpreter.key not in chosen:
            try:
                chosen[interpreter.key] = packages_for(run, lock, interpreter)
            except OrchError as error:
                chosen[interpreter.key] = error
        found = chosen[interpreter.key]
        if isinstance(found, OrchError):
            failed[node] = BackendError(f"{machines[node].name}: {found.message}", found.hint)
    if failed:
        raise all_of(failed)
    kinds = {key: packages for key, packages in chosen.items() if not isinstance(packages, OrchError)}
    return {node: Wanted(interpreter, kinds[interpreter.key]) for node, interpreter in interpreters.items()}


def _find(machine: Machine, workdir: str, want: Wanted) -> Found:
    answer, _ = machine.call("find_environment", timeout=LOOK_SECONDS, workdir=workdir, key=want.key)
    return Found(answer["folder"], is_whole=answer["whole"])


def _supplies(run: RunDir, wanted: Iterable[Wanted]) -> dict[str, str]:
    """Download all wheels and programs to send. Return the sha256 of the uv program for each kind of interpreter.

    Raises WheelError or LockError.
    """
    from orchestrator.environments.program import uv_for
    from orchestrator.environments.wheels import WheelStore

    store, uvs = WheelStore(run.root), dict[str, str]()
    for want in {each.interpreter.key: each for each in wanted}.values():
        store.have(want.packages.choices)
        uvs[want.interpreter.key] = uv_for(store, want.interpreter)
    return uvs


def _install(machine: Machine, workdir: str, store: WheelStore, want: Wanted, uv: str) -> Found:
    """Send the wheels that the machine lacks, then have the machine install the environment."""
    begun, choices = time.monotonic(), want.packages.choices
    digests = {uv, *(each.sha256 for each in choices)}
    send_contents(machine, workdir, "wheels", {digest: store.path(digest) for digest in digests})
    order = {
        "key": want.key, "requirements": want.packages.requirements, "uv": uv, "base": want.interpreter.base,
        "wheels": {each.file: each.sha256 for each in choices}, "paths": want.interpreter.paths,
    }  # fmt: skip
    done, _ = machine.call("install_environment", json.dumps(order).encode(), timeout=None, workdir=workdir)
    return Found(done["folder"], is_whole=True, made=done["made"], seconds=round(time.monotonic() - begun, 3))


def tidy_cache(machine: Machine, workdir: str) -> list[Finding]:
    """Remove code, wheels and environments from a machine's cache that were not used for CACHE_DAYS days."""
    tidied, _ = machine.call("tidy_cache", workdir=workdir, days=CACHE_DAYS)
    if not tidied["removed"]:
        return []
    what = f"{machine.name}: {tidied['removed']} files and environments of the cache"
    return [Finding("file", what, "removed", f"unused for {CACHE_DAYS} days, {size(tidied['freed'])}")]
