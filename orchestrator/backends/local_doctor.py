"""Checks this machine's Python, torch, disk, shared memory and GPUs for a local profile. No run is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.backends import gpu_checks
from orchestrator.backends.base import Check, CheckResult, Level
from orchestrator.backends.places.this_machine import ThisMachine
from orchestrator.errors import BackendError
from orchestrator.node.system.gpus.devices import gpus
from orchestrator.node.system.host import cores
from orchestrator.protocol.quantities import size
from orchestrator.runs.store import state_root
from orchestrator.specs.plan import nproc_by_node

if TYPE_CHECKING:
    from orchestrator.specs.profile import AnyProfile

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
LEAST_FREE: Final = 1 << 30
LEAST_SHM: Final = 1 << 30


def examine(profile: AnyProfile) -> list[Check]:
    """Return the checks of this machine for a local profile. `profile.python` is the interpreter that trains."""
    machine, on_host = ThisMachine(), profile.runtime == "none"
    python = (profile.python or sys.executable) if on_host else None
    rows = {
        "python3": CheckResult(OK, f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}"),
        "workdir": _room(state_root()),
        "ranks": _ranks(profile),
        "shm": _shared_memory(),
    }
    if python is not None:
        rows["training"] = _training(machine, python)
    else:
        rows["runtime"] = _runtime(machine, profile.runtime)
    if gpus():
        rows |= gpu_checks.ask(machine, python)
    return [Check(0, os.uname().nodename, what, *result) for what, result in rows.items()]


def _room(folder: Path) -> CheckResult:
    there = next(each for each in (folder, *folder.parents) if each.exists())
    disk = os.statvfs(there)
    free = disk.f_bavail * disk.f_frsize
    value = f"{folder}, {size(free)} free"
    if not os.access(there, os.W_OK):
        return CheckResult(FAIL, f"{folder} can't be written", "set ORCH_HOME to a folder of yours")
    return (
        CheckResult(OK, value) if free >= LEAST_FREE else CheckResult(WARN, value, "make room there, or set ORCH_HOME")
    )


def _ranks(profile: AnyProfile) -> CheckResult:
    cards, there, asked = gpus(), cores(), nproc_by_node(profile)
    ranks = sum(each or cards or there for each in asked)
    value = f"{ranks} on {cards} GPUs, {there} cores"
    if ranks <= (cards or there):
        return CheckResult(OK, value)
    why = "more ranks than GPUs: they train on the CPU" if cards else "more ranks than cores: they take turns"
    return CheckResult(WARN, value, why)


def _shared_memory() -> CheckResult:
    disk = os.statvfs("/dev/shm")  # noqa: S108 (its size is checked)
    shared = disk.f_blocks * disk.f_frsize
    hint = "DataLoader workers share memory there: enlarge /dev/shm"
    return CheckResult(OK, size(shared)) if shared >= LEAST_SHM else CheckResult(WARN, size(shared), hint)


def _training(machine: ThisMachine, python: str) -> CheckResult:
    try:
        found = machine.call("interpreter", python=python)[0]
    except BackendError as error:
        return CheckResult(FAIL, error.message, "set python: in the profile to the interpreter that has torch")
    value = f"{python}: python {found['python']}, torch {found.get('torch') or 'missing'}"
    hint = f"install torch for {python}, activate the environment that has it, or set python: in the profile"
    return CheckResult(OK, value) if found.get("torch") else CheckResult(FAIL, value, hint)


def _runtime(machine: ThisMachine, runtime: str) -> CheckResult:
    try:
        found = machine.call("container", runtime=runtime)[0]
    except BackendError as error:
        return CheckResult(FAIL, error.message, "set runtime: in the profile to a runtime that this machine has")
    return CheckResult(OK, f"{runtime} {found['version']}")
