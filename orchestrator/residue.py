"""What crashed runs left behind on this machine: found by marks, records and age, never by a name; then removed.

Nothing of a live run is touched, nothing of another user, and no process without a run's mark. A run that this state
folder does not know may be alive in another one: its processes are only listed, unless asked for, and even then they
stay while one of its agents lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from orchestrator.conclude import conclude, state_of
from orchestrator.errors import OrchError
from orchestrator.node.engine import Found, end_containers, everywhere
from orchestrator.node.processes import MARK, Process, identify, is_alive, send_signal, wait_gone
from orchestrator.notify import watched
from orchestrator.store import RunDir, live_runs
from orchestrator.supervisor import start_supervisor

SETTLED_SECONDS: Final = 60.0  # younger files may be a submit's that is still at work
KILL_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Finding:
    """Something that was left behind; `done` says what became of it."""

    kind: str  # process | container | run | mark | folder | file
    what: str
    done: str  # ended | removed | kept | would be ended | would be removed
    why: str

    def to_json(self) -> dict[str, Any]:
        """The finding as JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class Marked:
    """A process of this user that carries a run's mark."""

    process: Process
    run_id: str
    run_dir: str


def collect_garbage(root: Path, *, dry_run: bool, unknown: bool) -> list[Finding]:
    """Find and remove everything that crashed runs have left here; with `dry_run`, only find it."""
    found = [*_runs_without_agents(root, dry_run=dry_run), *_containers(root, dry_run=dry_run, unknown=unknown)]
    found += _processes(root, dry_run=dry_run, unknown=unknown)
    found += _files(root, dry_run=dry_run)
    if not dry_run and (live_runs(root) or watched(root)):
        start_supervisor(root)  # should it have been killed too
    return found


# -- processes


def marked_processes() -> list[Marked]:
    """Every living process of this user that carries any run's mark, but the caller."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            if os.stat(f"/proc/{name}").st_uid != os.getuid():
                continue  # root may read everyone's
            environment = _environment(Path(f"/proc/{name}"))
            run_id, slash, _ = environment.get(MARK, "").rpartition("/")
            process = identify(int(name)) if slash and run_id else None
            if process is not None:
                found.append(
                    Marked(process, run_id, environment.get("ORCH_RUN_DIR") or _run_dir(Path(f"/proc/{name}")))
                )
    return found


def _environment(folder: Path) -> dict[str, str]:
    entries = (folder / "environ").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _run_dir(folder: Path) -> str:
    """The run directory of a launcher, which is told it by its own archive's path."""
    words = (folder / "cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    return next((os.path.dirname(word) for word in words if word.endswith("/node.pyz")), "")


def _runs_without_agents(root: Path, *, dry_run: bool) -> Iterator[Finding]:
    """Runs that nobody gave a verdict to, though all their agents are gone."""
    for run in live_runs(root):
        try:
            if dry_run:
                if state_of(run).is_final:
                    yield Finding("run", run.run_id, "would be ended", "it has ended and has no verdict yet")
            elif (verdict := conclude(root, run)) is not None:
                yield Finding("run", run.run_id, "ended", f"it had no verdict yet: {verdict.outcome}")
        except (OrchError, OSError) as error:
            yield Finding("run", run.run_id, "kept", f"its record can't be read: {error}".splitlines()[0])


def _processes(root: Path, *, dry_run: bool, unknown: bool) -> Iterator[Finding]:
    by_run: dict[str, list[Marked]] = {}
    for each in marked_processes():
        by_run.setdefault(each.run_id, []).append(each)
    for run_id, group in sorted(by_run.items()):
        if _is_live(root, run_id):
            continue
        known = (root / "runs" / run_id / "verdict.json").exists()
        why = f"its run {run_id} has ended" if known else f"its run {run_id} is not in this state folder"
        if not known and _agent_lives({each.run_dir for each in group if each.run_dir}):
            yield from (_kept(each, f"{why}, and is alive in another one") for each in group)
        elif not known and not unknown:
            yield from (_kept(each, f"{why}; --unknown ends it") for each in group)
        elif dry_run:
            yield from (Finding("process", _name(each.process), "would be ended", why) for each in group)
        else:
            yield from _end(run_id, group, why)


def _containers(root: Path, *, dry_run: bool, unknown: bool) -> Iterator[Finding]:
    """Containers of runs that have ended, by their labels; what is inside of them goes with them."""
    for run_id, group in sorted(_by_run(everywhere(map(str, root.glob("runs/*/nodes/*")))).items()):
        if _is_live(root, run_id):
            continue
        known = (root / "runs" / run_id / "verdict.json").exists()
        why = f"its run {run_id} has ended" if known else f"its run {run_id} is not in this state folder"
        stays = not known and _agent_lives({each.run_dir for each in group})
        stuck: list[str] = []
        if stays or (not known and not unknown):
            done, why = "kept", f"{why}, and is alive in another one" if stays else f"{why}; --unknown ends it"
        elif dry_run:
            done = "would be removed"
        else:
            folders = [str(path) for path in (root / "runs" / run_id).glob("nodes/*")]
            stuck, done = end_containers(run_id, folders, anywhere=True)[1], "removed"
        for each in group:
            is_stuck = any(each.id[:12] in words for words in stuck)
            yield Finding("container", each.id[:12], "kept" if is_stuck else done, why)


def _by_run(containers: list[Found]) -> dict[str, list[Found]]:
    by_run: dict[str, list[Found]] = {}
    for each in containers:
        by_run.setdefault(each.run_id, []).append(each)
    return by_run


def _is_live(root: Path, run_id: str) -> bool:
    """May this run of ours be going on? One whose record can't be read counts as live: who can't tell must not kill."""
    run = RunDir(root / "runs" / run_id)
    if (run.path / "verdict.json").exists():
        return False
    try:
        # What this very look has just given its verdict is no longer live; what is being submitted still is.
        return run.path.exists() and ((root / "live" / run_id).exists() or not state_of(run).is_final)
    except OrchError:
        return True


def _agent_lives(folders: set[str]) -> bool:
    """Does an agent of that run live, as its own run directory tells?"""
    for folder in folders:
        for path in Path(folder).glob("nodes/*/agent.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                agent = json.loads(path.read_bytes())
                if is_alive(Process(agent["pid"], agent["started"])):
                    return True
    return False


def _kept(each: Marked, why: str) -> Finding:
    return Finding("process", _name(each.process), "kept", why)


def _name(process: Process) -> str:
    return f"{process.pid} ({process.command})"


def _end(run_id: str, group: list[Marked], why: str) -> Iterator[Finding]:
    """SIGKILL, again and again while new ones turn up: a process may fork between being listed and being killed."""
    end, seen = time.monotonic() + KILL_SECONDS, dict.fromkeys(each.process for each in group)
    left = list(seen)
    while left:
        for process in left:
            send_signal(process, signal.SIGKILL)
        wait_gone(left, max(0.05, end - time.monotonic()))
        left = [each.process for each in marked_processes() if each.run_id == run_id]
        seen |= dict.fromkeys(left)
        if time.monotonic() >= end:
            break
    stuck = {process.pid for process in left}
    for process in seen:
        yield Finding("process", _name(process), "kept" if process.pid in stuck else "ended",
                      f"{why}; it could not be ended" if process.pid in stuck else why)  # fmt: skip


# -- files


def _files(root: Path, *, dry_run: bool) -> Iterator[Finding]:
    done = "would be removed" if dry_run else "removed"
    for kind, path, why in _leftovers(root):
        try:
            if not dry_run:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            yield Finding(kind, str(path), done, why)
        except OSError as error:
            yield Finding(kind, str(path), "kept", f"{why}; {error.strerror}")
    yield from _folders_without_record(root)
    yield from _partial_inputs(root, dry_run=dry_run)


def _leftovers(root: Path) -> Iterator[tuple[str, Path, str]]:
    for path in _children(root / "live"):
        if _is_settled(path) and not (root / "runs" / path.name / "run.json").exists():
            yield "mark", path, "a live mark without a run"
    for folder in _children(root / "runs"):
        if _is_settled(folder) and not (folder / "run.json").exists() and _is_bare(folder):
            yield "folder", folder, "a submit was killed before it had recorded its run"
            continue
        for path in (*folder.glob(".*.tmp"), *folder.glob("nodes/*/*.tmp")):
            if _is_settled(path):
                yield "file", path, "its writer was killed"
        if (folder / "verdict.json").exists():
            for path in (*folder.glob("checkpoints/.tmp-step_*"), *folder.glob("checkpoints/.gone-step_*")):
                yield "folder", path, "a checkpoint that was never finished, or already deleted"
    for path in root.glob(".*.tmp"):
        if _is_settled(path):
            yield "file", path, "its writer was killed"


def _is_bare(folder: Path) -> bool:
    """Is there nothing in it that anybody could miss?"""
    return all(
        path.name == "nodes" or (path.name.startswith(".") and path.name.endswith(".tmp"))
        for path in folder.rglob("*")
    )  # fmt: skip


def _folders_without_record(root: Path) -> Iterator[Finding]:
    for folder in _children(root / "runs"):
        if folder.is_dir() and not (folder / "run.json").exists() and not _is_bare(folder):
            yield Finding("folder", str(folder), "kept", f"its record is lost; orch rm {folder.name} removes it")


def _partial_inputs(root: Path, *, dry_run: bool) -> Iterator[Finding]:
    """Inputs whose fetching was cut off; one that is being fetched holds its lock."""
    for path in sorted((root / "inputs").glob("*.partial")):
        with contextlib.suppress(OSError), open(path.with_suffix(".lock"), "a+b") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            if not dry_run:
                path.unlink()
            yield Finding("file", str(path), "would be removed" if dry_run else "removed", "an input half fetched")


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _is_settled(path: Path) -> bool:
    """Is it too old to be somebody's who is still at work?"""
    try:
        return time.time() - path.stat().st_mtime > SETTLED_SECONDS
    except OSError:
        return False
