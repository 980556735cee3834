"""orch doctor, orch nodes and orch queue: check a profile's machines, and list who uses them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends import backend_of
from orchestrator.errors import OrchError, UsageError
from orchestrator.specs.kinds import kind_named

if TYPE_CHECKING:
    from orchestrator.backends.base import Check
    from orchestrator.runs.shared_hosts import SharedRun
    from orchestrator.specs.profiles import AnyProfile


AT_ONCE: Final = 8  # number of profiles that are examined at the same time


def examine(profile: AnyProfile, *, on_node: bool = False) -> list[Check]:
    """Check what a profile describes: every node of an ssh profile, this machine for a local profile, or the scheduler.

    With `on_node`, a short job of the scheduler also checks one node.
    """
    from orchestrator.prepare.prepare import check_system

    check_system(profile)
    if kind_named(profile.kind).on_this_machine and profile.python is None:
        from orchestrator.prepare.interpreter import of_shell

        profile = replace(profile, python=of_shell("", os.environ, needs_torch=True).path)
    return backend_of(profile).doctor(profile, on_node=on_node)


def holdings_of_all() -> list[tuple[str, list[dict[str, Any]] | OrchError]]:
    """Return (name, users and runs on its machines) for each of the user's profiles, except profiles of this machine.
    If a profile's machines can't be listed, the second item is the error.
    """
    from concurrent.futures import ThreadPoolExecutor

    from orchestrator.specs.documents.loader import load_profile
    from orchestrator.specs.documents.lookup import own_profiles

    def look(name: str, path: Path) -> tuple[str, list[dict[str, Any]] | OrchError] | None:
        try:
            profile = load_profile(str(path))
            is_here = kind_named(profile.kind).on_this_machine
            return None if is_here else (name, backend_of(profile).holdings(profile))
        except OrchError as error:
            return name, error

    own = own_profiles(Path.cwd())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = [each for each in pool.map(look, own.keys(), own.values()) if each is not None]
    if not found:
        raise UsageError("you have no profile of other machines", "orch init --host NAME writes one")
    return found


def shared_runs(profile: AnyProfile) -> tuple[list[SharedRun], list[str]]:
    """Return the runs on the hosts of an ssh profile (and on its spare hosts), and an error message for each host
    that did not answer.
    """
    from orchestrator.runs.shared_hosts import runs_on
    from orchestrator.specs.kinds import kind_named

    if profile.kind != "ssh":
        hint = (
            "use the scheduler's own command to see its queue"
            if kind_named(profile.kind).scheduler
            else "name an ssh profile"
        )
        raise UsageError(f"orch queue needs an ssh profile, and this one is of kind {profile.kind}", hint)
    found = backend_of(profile).holdings(profile)
    problems = [str(each["problem"]) for each in found if "problem" in each]
    return runs_on({each["host"]: each for each in found if "problem" not in each}), problems
