"""Removes what ended and crashed runs left behind.

Leftovers are found by orch's marks on processes, labels on containers, records and age, never by a name. Live runs,
other users' processes and processes without a run's mark are never touched. A run that this state folder does not know
may belong to another state folder, so its leftovers are only listed. On request they are removed, unless one of its
agents is alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.backends import backend_of
from orchestrator.backends.base import Finding, Judge, Ruling
from orchestrator.errors import OrchError
from orchestrator.looking.state import state_of
from orchestrator.operations.gc_files import collect_files
from orchestrator.runs import outbox
from orchestrator.runs.run_id import is_run_id
from orchestrator.runs.store import RunDir, check_own, live_runs
from orchestrator.supervisor.background import start_supervisor
from orchestrator.supervisor.reconcile import reconcile
from orchestrator.transport.machine import LocalMachine

if TYPE_CHECKING:
    from orchestrator.specs.profiles import AnyProfile


def collect_garbage(root: Path, *, dry_run: bool, unknown: bool) -> list[Finding]:
    """Remove everything that crashed runs have left on this machine. With `dry_run`, only list what would be
    removed.
    """
    if not dry_run:
        check_own(root)
    found = [*_runs_without_agents(root, dry_run=dry_run), *_leftovers(root, dry_run=dry_run, unknown=unknown)]
    found += collect_files(root, dry_run=dry_run)
    if not dry_run and (live_runs(root) or outbox.entered(root)):
        start_supervisor(root)  # in case the supervisor was killed too
    return found


def collect_on_machines(root: Path, profile: AnyProfile, *, dry_run: bool, unknown: bool) -> list[Finding]:
    """Remove everything that ended runs have left on a profile's machines. With `dry_run`, only list what would be
    removed.

    Raises UsageError if the profile lists no machines.
    """
    if not dry_run:
        check_own(root)
    return backend_of(profile).collect_garbage(profile, judge(root, unknown=unknown), dry_run=dry_run)


# -- which runs


def judge(root: Path, *, unknown: bool) -> Judge:
    """Return a function that decides, from the records of this state folder, whether leftovers of a run are removed.

    With `unknown`, the leftovers of runs that this state folder does not know are removed too.
    """

    def rule(run_id: str, has_agent: bool) -> Ruling | None:
        if _is_live(root, run_id):
            return None
        if (root / "runs" / run_id / "verdict.json").exists():
            return Ruling(True, f"its run {run_id} has ended", RunDir(root / "runs" / run_id))
        if (root / "live" / run_id).exists():  # the run was in this state folder
            return Ruling(True, f"the folder of its run {run_id} was deleted")
        why = f"its run {run_id} is not in this state folder"
        if has_agent:
            return Ruling(False, f"{why}, and is alive in another one")
        return Ruling(True, why) if unknown else Ruling(False, f"{why}; --unknown ends it")

    return rule


def _is_live(root: Path, run_id: str) -> bool:
    """Return True if a run of this state folder may be live. A run with an unreadable record counts as live."""
    if not is_run_id(run_id):
        return True
    run = RunDir(root / "runs" / run_id)
    if (run.path / "verdict.json").exists():
        return False
    try:
        # A run that has just received its verdict is no longer live; a run that is being submitted is.
        return (run.path / "run.json").exists() and ((root / "live" / run_id).exists() or not state_of(run).is_final)
    except OrchError:
        return True


def _runs_without_agents(root: Path, *, dry_run: bool) -> Iterator[Finding]:
    """Record the outcome of each run whose agents have all ended, if it is not recorded yet."""
    for run in live_runs(root):
        try:
            if dry_run:
                if state_of(run).is_final:
                    yield Finding("run", run.run_id, "would be ended", "it has ended and has no verdict yet")
            elif (verdict := reconcile(root, run)) is not None:
                yield Finding("run", run.run_id, "ended", f"it had no verdict yet: {verdict.outcome}")
        except (OrchError, OSError) as error:
            yield Finding("run", run.run_id, "kept", f"its record can't be read: {error}".splitlines()[0])


# -- their leftovers on this machine


def _leftovers(root: Path, *, dry_run: bool, unknown: bool) -> Iterator[Finding]:
    """End the processes and containers of runs that have ended."""
    machine, rule = LocalMachine(), judge(root, unknown=unknown)
    runs = machine.call("leftovers", workdir=str(root))[0]["runs"]
    for run_id, left in sorted(runs.items()):
        if left["processes"] and (ruling := rule(run_id, left["agent"])) is not None:
            stuck: list[str] = []
            if ruling.ends and not dry_run:
                asked = {"run_dir": f"{root}/runs/{run_id}", "run_id": run_id, "node": None}
                stuck = machine.call("clean_up", **asked)[0]["survivors"]
            yield from (_said(each, stuck, ruling, dry_run=dry_run) for each in left["processes"])


def _said(what: str, stuck: list[str], ruling: Ruling, *, dry_run: bool) -> Finding:
    """Report what happens to one process or container. `stuck` has those that could not be ended."""
    is_container = what.startswith("container ")
    kind, name, done = ("container", what[10:], "removed") if is_container else ("process", what, "ended")
    if what in stuck or (is_container and any(name in words for words in stuck)):
        return Finding(kind, name, "kept", f"{ruling.why}; it could not be ended")
    if ruling.ends:
        return Finding(kind, name, f"would be {done}" if dry_run else done, ruling.why)
    return Finding(kind, name, "kept", ruling.why)
