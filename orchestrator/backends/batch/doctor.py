"""The checks of `orch doctor` that all schedulers have in common: the login node, the programs, and the folder of
all runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from orchestrator.backends.base import Check, CheckResult, Level, connected, room
from orchestrator.backends.batch.scheduler import Folder, Trial
from orchestrator.errors import BackendError, PythonMissingError

COMMON: Final = ("login", "python", "programs")
NOT_SHARED: Final = "set `workdir` in the profile to a folder that login and compute nodes share"
Found = dict[str, CheckResult]
"""Check results by the names of the checks."""


def examine(
    trial: Trial, own: Sequence[str], add_own: Callable[[Found], None], *, unseen: str, more: Sequence[str] = ()
) -> list[Check]:
    """Make the common checks, then the scheduler's `own` checks, which `add_own` adds one by one.

    If the scheduler can't be queried, the first of the `own` checks fails. unseen: a hint on what these checks can't
    detect; "" if they cover everything. more: checks that are listed only if they were made. `add_own` raises
    BackendError at the first check that can't be made.
    """
    found: Found = {}
    site, login = trial.site, getattr(trial.launch.profile, "login", None) or ""
    try:
        folder = trial.folder()
        if login:
            found["login"], found["python"] = connected(site.machine()), _python(trial)
        found["workdir"] = _room(folder, unseen)
        programs = site.scheduler.programs
        if missing := site.missing(programs):
            found["programs"] = CheckResult(Level.FAIL, f"no {', '.join(missing)} on {site.where}", site.hint)
        else:
            found["programs"] = CheckResult(Level.OK, programs[0])
            add_own(found)
    except BackendError as error:
        failed = "login" if login and "login" not in found else own[0]
        if failed == "login" and isinstance(error, PythonMissingError):
            found["login"], failed = CheckResult(Level.OK, "connected"), "python"
        found[failed] = CheckResult(Level.FAIL, error.message, error.hint)
    shown = [what for what in (*COMMON, *own, *more) if what in found or what in ("programs", *own)]
    return [Check(0, login or site.scheduler.title, what, *found.get(what, _UNKNOWN)) for what in shown]


_UNKNOWN: Final = CheckResult(Level.UNKNOWN)


def _python(trial: Trial) -> CheckResult:
    try:
        python, machine = trial.python(), trial.site.machine()
    except BackendError as error:
        return CheckResult(Level.FAIL, error.message, error.hint)
    own = f"orch runs there with {trial.site.hello()['path']}: {machine.passed_over}" if machine.passed_over else ""
    return CheckResult(Level.OK, python, own)


def _room(folder: Folder, unseen: str) -> CheckResult:
    if not folder.is_writable:
        return CheckResult(Level.FAIL, f"{folder.top} can't be written", NOT_SHARED)
    found = room(folder.top, folder.free)
    return found if found.level is not Level.OK else found._replace(hint=unseen and unseen.format(folder.path))
