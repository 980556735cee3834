"""Reads and writes the folders of runs. Each file has one writer, writes are atomic, events are append-only, and
reading changes nothing.

    ROOT/runs/<run id>/            one run
    ROOT/live/<run id>             exists while the run may be live
    ROOT/runs/.removed-...         a run that is being deleted
    ROOT/index                     run ids in the order of their creation; rebuilt from the runs if it is lost
    ROOT/labelled                  the id of a run for each change of its tags or its note

A live mark is created before its run directory and removed after the verdict. So a crash leaves at worst a superfluous
mark, and never a run that no supervisor watches.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeVar

from orchestrator.errors import RunNotFoundError, StoreError, UsageError
from orchestrator.node.system.private import make_private, remedy, why_exposed, why_unsafe
from orchestrator.protocol import files
from orchestrator.protocol.events import Clock, Event, of, read_event, read_events
from orchestrator.protocol.json_text import objects_in
from orchestrator.protocol.reading import MOST_LINES, MOST_RECORD, READABLE, NotOrdinaryError, read_json, read_regular
from orchestrator.protocol.str_enum import member_of
from orchestrator.runs.files.file_cache import FileCache, Signature, signature_of
from orchestrator.runs.record import PlanRecord, RunRecord
from orchestrator.runs.run_id import index_of, name_of, sweep_of
from orchestrator.runs.state import Ending, HandleStatus

Record = dict[str, Any]

MOST_KEPT: Final = 32  # number of records in the cache
DELETED: Final = "orch gc ends what is left of it here, and orch gc --profile PROFILE on a profile's machines"
_Made = TypeVar("_Made")
_NONE: Final[list[Event]] = []  # the events of a file that does not exist yet
REMOVED_PREFIX: Final = ".removed-"  # prefix of a run's folder while the folder is deleted


def state_root() -> Path:
    """Return orch's state folder, which contains all runs: $ORCH_HOME or, without that variable, `orch` in the user's
    folder for state.
    """
    if home := os.environ.get("ORCH_HOME"):
        root = Path(home).expanduser().absolute()
        there = next(each for each in (root, *root.parents) if each.exists())
        if not there.is_dir():
            why = "which is not a folder" if there == root else f"and {there} is not a folder"
            raise StoreError(f"ORCH_HOME is {root}, {why}", "set it to a folder, or unset it")
        return root
    from platformdirs import user_state_path

    return user_state_path("orch")


def check_own(root: Path, run: RunDir | None = None) -> None:
    """Raise StoreError if other users may write into the state folder or the run's folder.

    Call this before starting, ending or writing anything, because the records in these folders name programs, hosts and
    processes. Reading needs no such check.
    """
    folders = [root, root / "runs", root / "live", *([run.path] if run is not None else [])]
    said = next(filter(None, (why_exposed(str(folder)) for folder in folders)), None)
    if said is None:
        return
    hint = "set ORCH_HOME to a folder of your own; commands that only read work here too: orch status, orch logs"
    if (path := said.partition(" may be written by others")[0]) != said:
        hint = f"remove other users' right to write: chmod go-w {shlex.quote(path)}"
    raise StoreError(f"{said}: orch does not start, end or change runs in such a folder", hint)


def why_full(root: Path) -> str:
    """Return why nothing can be recorded in the state folder; empty if its file system has free space."""
    try:
        disk = os.statvfs(root)
    except OSError:  # the next read or write reports the error
        return ""
    lack = "space" if not disk.f_bavail else "inodes" if disk.f_files and not disk.f_favail else ""
    return f"nothing can be recorded in {root}: its file system has no {lack} left" if lack else ""


@dataclass(frozen=True)
class RunDir:
    """The folder of one run."""

    path: Path

    @property
    def run_id(self) -> str:
        """Return the run's id, which is the folder's name."""
        return self.path.name

    @property
    def root(self) -> Path:
        """Return orch's state folder, which contains all runs."""
        return self.path.parent.parent

    def node(self, node_rank: int) -> Path:
        """Return the folder of one node."""
        return self.path / "nodes" / str(node_rank)

    def read(self, name: str) -> Record | None:
        """Return a JSON record, or None if it does not exist. Raises StoreError if it can't be read."""
        path = f"{self.path}/{name}"  # `orch status` reads thousands, and joining Paths would take as long as reading
        remedy = f"inspect the file; if the run may still be live, end its processes: orch cancel {self.run_id}"
        try:
            data = read_json(path, MOST_RECORD, self.path if "/" in name else None)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise StoreError(f"{path} can't be read: {why}", remedy) from error
        if not isinstance(data, dict):
            raise StoreError(f"{path} does not contain a JSON object", remedy)
        return data

    def made_of(self, name: str, make: Callable[[RunDir], _Made]) -> _Made:
        """Return `make(run)`, which computes a value from the JSON record with this name. The value is cached until the
        record's file changes.

        Some records list every node and are read once for every node, which would take quadratic time without the
        cache.
        """
        signature = signature_of(f"{self.path}/{name}")
        return make(self) if signature is None else _made_of(make, self, signature)

    def record(self) -> RunRecord:
        """Return the content of run.json, with defaults for lost fields. Raises StoreError if it can't be read."""
        return self.made_of("run.json", _record_of)

    def plan(self) -> PlanRecord:
        """Return the parts of the plan that readers need. Raises StoreError if it can't be read."""
        return self.made_of("plan.json", _plan_of)

    def code_files(self) -> dict[str, list[str]]:
        """Map the path of each file of the copied code to its kind and hash. The result is empty if the record of the
        copy is lost.
        """
        listing = self.read("code.json")
        files = listing.get("files") if listing is not None else None
        return files if isinstance(files, dict) else {}

    @property
    def submitted_code(self) -> Path:
        """Return the folder with the code as it was submitted. A run of a sweep starts in a copy of this folder."""
        sweep = sweep_of(self.run_id)
        shared = self.root / "sweeps" / sweep / "code" if sweep is not None else None
        return shared if shared is not None and shared.is_dir() else self.path / "code"

    @property
    def has_begun(self) -> bool:
        """Return True if a start of the run has begun. The start may also have ended or been interrupted."""
        return os.path.exists(f"{self.path}/handle.json")

    def handle_status(self) -> HandleStatus | None:
        """Return how far the start of the run has come, or None if no start has begun.

        Raises StoreError if handle.json is damaged.
        """
        handle = self.read("handle.json")
        return member_of(HandleStatus, handle.get("state")) if handle is not None else None

    def ending(self) -> Ending | None:
        """Return the recorded end of the run. Return None if the run has not ended, or if the record is damaged."""
        try:
            kept = self.read("verdict.json")
        except StoreError:
            return None
        return Ending.from_json(kept) if kept is not None else None

    def write(self, name: str, record: Record, *, private: bool = False) -> None:
        """Write a record atomically."""
        with self._unless_removed():
            write_durably(self._own_path(name), json.dumps(record, indent=1).encode(), private=private)

    @property
    def is_cancelled(self) -> bool:
        """Return whether a cancel is recorded. No agent may be started after a cancel."""
        from orchestrator.protocol.cancelling import is_cancelled

        return is_cancelled(self.path)

    def record_cancel(self, *, now: bool) -> None:
        """Write cancel.json. If the disk is full, it is written into a reserve file of the run."""
        from orchestrator.protocol.cancelling import record_cancel

        with self._unless_removed(), _said_of(self._own_path("cancel.json")):
            record_cancel(self.path, {"now": now, "time": time.time()})

    def append_event(self, event: Event) -> None:
        """Append one event of the submitting machine. Several commands may append at the same time."""
        with self._unless_removed():
            append_line(self._own_path("events.jsonl"), json.dumps(event.timed(round(time.time(), 3)).to_json()))

    def _own_path(self, name: str) -> Path:
        """Return the path of one of orch's own files, before orch writes it. If the run's program has put a link, a
        pipe or a folder there, this is moved aside.
        """
        path = self.path / name
        with contextlib.suppress(OSError):
            if not stat.S_ISREG(os.lstat(path).st_mode):
                os.replace(path, files.temporary_name(path))
        return path

    @contextlib.contextmanager
    def _unless_removed(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            self.check_is_there()
            raise

    def check_is_there(self) -> None:
        """Raise RunNotFoundError if another command has removed the run in the meantime."""
        if not self.path.exists():
            raise RunNotFoundError(f"run {self.run_id} has been removed meanwhile", "orch status -a lists all runs")

    def events(self, known: FileCache | None = None) -> tuple[Event, ...]:
        """Return the events of the submitting machine and of every node, each in order. Lines that are not a known
        event are skipped.

        With a cache, only changed files are read. If no file has changed, the same object is returned.
        """
        cache, paths = known or FileCache(), self._event_files()
        parts = [cache.of_file(path, partial(_events_in, self, path, node), _NONE) for path, node in paths.items()]
        return cache.of_parts(str(self.path), parts, lambda: tuple(correct_clock_skew([*chain.from_iterable(parts)])))

    def event_lines(self) -> list[Record]:
        """Return the events as JSON objects, including kinds and fields that this version does not know."""
        lines = [line for path, node in self._event_files().items() for line in _lines_in(self, path, node)]
        known = [(line, event) for line in lines if (event := read_event(line)) is not None]
        for (line, _), event in zip(known, correct_clock_skew([event for _, event in known]), strict=True):
            line["time"] = event.time
        return lines

    def _event_files(self) -> dict[str, int | None]:
        """Map each file of events to its node (None for the submitting machine)."""
        try:
            nodes = sorted(names_in(f"{self.path}/nodes"), key=lambda name: int(name) if name.isdecimal() else -1)
        except OSError as error:
            raise StoreError(f"{self.path}/nodes can't be read: {error.strerror}") from error
        paths: dict[str, int | None] = {f"{self.path}/events.jsonl": None}
        return paths | {f"{self.path}/nodes/{name}/events.jsonl": int(name) for name in nodes if name.isdecimal()}


def correct_clock_skew(events: list[Event]) -> list[Event]:
    """Return the events with their times converted from the nodes' clocks to this machine's clock. The events of class
    Clock have the differences.
    """
    if not any(isinstance(event, Clock) for event in events):
        return events
    from orchestrator.outcome.restart import opened_start

    ahead: dict[tuple[int | None, int], float] = {(each.of, each.start): each.ahead for each in of(events, Clock)}
    start: dict[int | None, int] = {}
    timed = []
    for event in events:
        if (opened := opened_start(event)) is not None:
            start[event.node] = opened.start
        off = ahead.get((event.node, start.get(event.node, -1)))
        timed.append(event if off is None else event.timed(round(event.time - off, 3)))
    return timed


@lru_cache(maxsize=MOST_KEPT)
def _made_of(make: Callable[[RunDir], _Made], run: RunDir, _: Signature) -> _Made:
    return make(run)


def _record_of(run: RunDir) -> RunRecord:
    return RunRecord.from_json(run.run_id, run.read("run.json"))


def _plan_of(run: RunDir) -> PlanRecord:
    return PlanRecord.from_json(run.read("plan.json"))


def _events_in(run: RunDir, path: str, node: int | None) -> list[Event]:
    return read_events(_lines_in(run, path, node))


def _lines_in(run: RunDir, path: str, node: int | None) -> list[Record]:
    """Return the events in a file as JSON objects. In a node's file, lines that claim to be from another node are
    ignored.
    """
    # This machine's own events are directly in the run's folder, so there is no path below that folder to check.
    lines = read_lines(path, None if node is None else run.path)
    found = [event for event in lines if isinstance(event.get("kind"), str)]
    return found if node is None else [event for event in found if event.get("node") == node]


def read_lines(path: Path | str, below: Path | None = None) -> Iterator[Record]:
    """Yield the JSON object in each line of a file. Lines that are not a JSON object are skipped. A missing file, or a
    link, a pipe, a folder or gigabytes of data that a program has put there, has no lines.

    No link below the folder `below` is followed. Raises StoreError if the file can't be read.
    """
    try:
        data = read_regular(path, MOST_LINES, below)
    except (FileNotFoundError, NotADirectoryError, NotOrdinaryError):
        return
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error.strerror}") from error
    yield from objects_in(data.split(b"\n"))


def deliver(path: Path, data: bytes, *, mode: int = READABLE, make: bool = False) -> str:
    """Write a file that the user has named (see `protocol/writing.py`), and return its path. Raises UsageError if that
    fails.
    """
    from orchestrator.protocol.writing import write_named

    with said_of_named(path):
        return write_named(path, data, mode=mode, make=make)


@contextlib.contextmanager
def said_of_named(path: Path) -> Iterator[None]:
    """Raise UsageError with the path if a file or folder that the user has named can't be written."""
    try:
        yield
    except OSError as error:
        where = error.filename if "/" in str(error.filename) else path  # a temporary name says nothing
        words = f"{where} can't be written: {error.strerror}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(words, "make room on that disk, or name another folder") from error
        raise UsageError(words, "name another folder") from error


def write_durably(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file atomically and durably. Raises StoreError with the path if that fails."""
    with _said_of(path):
        files.write_atomic(path, data, mode=files.PRIVATE if private else READABLE)


@contextlib.contextmanager
def _said_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path} can't be written: {error.strerror}",
            "make room on that disk, or set ORCH_HOME to a folder on another disk",
        ) from error


def append_line(path: Path, line: str) -> None:
    """Append a line to a file. Several processes may append at the same time. Raises StoreError with the path if
    that fails.
    """
    append_lines(path, [line])


def append_lines(path: Path, lines: Iterable[str]) -> None:
    """Append several lines in one write, as `append_line` does."""
    with _said_of(path):
        files.append_lines(path, lines)


# -- all runs


def make_state_folder(root: Path) -> None:
    """Create orch's state folder, which contains all runs, if it is missing. Raises StoreError if that fails or if
    other users may write into it.
    """
    check_own(root)
    try:
        make_private(str(root), exist_ok=True)
    except OSError as error:
        raise StoreError(f"{root} can't be created: {error.strerror}", "set ORCH_HOME to a folder of yours") from error


def create_run(
    root: Path,
    run_id: str,
    record: Record,
    folder: str | None = None,
    *,
    indexed: bool = True,
    hold_start: Callable[[RunDir], object] = lambda _: None,
) -> RunDir:
    """Record a run: create its folder (a link if `folder` is elsewhere), its record, its entry in ROOT/index, and its
    live mark (a file in ROOT/live).

    A caller that creates many runs passes `indexed=False`, and adds all of them to the index at once. `hold_start`
    takes the start lock. It is called after the folder is created, and before the record makes the run visible to other
    processes.
    """
    make_state_folder(root)
    run = RunDir(root / "runs" / run_id)
    elsewhere = folder is not None and folder != str(run.path)
    try:
        make_private(str(root / "live"), exist_ok=True)
        (root / "live" / run_id).touch()
        real = Path(folder) if folder is not None and elsewhere else run.path
        if elsewhere:
            _check_elsewhere(real.parent, record.get("profile") or {})
        make_private(str(real))
        if elsewhere:
            make_private(str(run.path.parent), exist_ok=True)
            run.path.symlink_to(real)
        (run.path / "nodes").mkdir()
    except OSError as error:
        what = "ORCH_HOME, or workdir: in the profile," if elsewhere else "ORCH_HOME"
        said = f"{error.filename or run.path} can't be created: {error.strerror}"
        raise StoreError(said, f"set {what} to a folder of yours") from error
    try:
        hold_start(run)
        run.write("run.json", record)
        if indexed:
            append_line(root / "index", run_id)
    except StoreError:  # the disk is full
        remove_run(root, run)
        raise
    return run


def _check_elsewhere(folder: Path, profile: Mapping[str, Any]) -> None:
    """Raise StoreError if other users may write into, or replace, the folder in which the profile keeps runs."""
    make_private(str(folder), exist_ok=True)
    said = why_unsafe(str(folder), shared_parent=bool(profile.get("shared_parent")))
    if said is not None:
        raise StoreError(f"{said}: a run's files would not be safe there", remedy(said))


def live_runs(root: Path) -> list[RunDir]:
    """Return the runs that have a live mark (a file in ROOT/live), so that they may still be active. Marks of runs that
    were never recorded are ignored.
    """
    return [RunDir(root / "runs" / name) for name in _live_names(root)]


def is_any_live(root: Path) -> bool:
    """Return whether any run has a live mark (a file in ROOT/live), so that it may still be active."""
    return any(True for _ in _live_names(root))


def _live_names(root: Path) -> Iterator[str]:
    return (name for name in names_in(root / "live") if os.path.exists(f"{root}/runs/{name}/run.json"))


def is_live(root: Path, run: RunDir) -> bool:
    """Return whether the run has a live mark (a file in ROOT/live), which is removed once the run's end is recorded."""
    return (root / "live" / run.run_id).exists()


def retire(root: Path, run: RunDir) -> None:
    """Remove the live mark (the file in ROOT/live) of a run whose end is recorded."""
    (root / "live" / run.run_id).unlink(missing_ok=True)


def newest_runs(root: Path, count: int | None = None) -> list[RunDir]:
    """Return at most `count` runs, newest first. No file of a run is opened."""
    return list(islice(_newest_first(root), count))


def newest_ids(root: Path) -> list[str]:
    """Return the ids of all runs, newest first, from a single listing of the folder of runs."""
    runs = root / "runs"
    try:
        with os.scandir(runs) as entries:
            there = {entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()}
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [name for name in reversed(_indexed(root)) if name in there]
    missed = there.difference(found)
    return [*found, *sorted(missed, key=lambda name: _changed(runs / name), reverse=True)]


def newest_groups(root: Path, count: int | None = None) -> list[list[RunDir]]:
    """Return the newest runs in groups. The runs of a sweep form one group, sorted by their number in the sweep. Every
    other run is a group of its own.

    Runs of two sweeps may alternate in the index, and the runs of a sweep are not recorded in the order of their
    numbers.
    """
    groups: dict[str, list[str]] = {}  # by run, or by sweep, whose runs are added below
    sweeps = set[str]()
    for run in _newest_first(root):
        if (sweep := sweep_of(run.run_id)) is not None:
            sweeps.add(sweep)
        groups.setdefault(sweep or run.run_id, [] if sweep else [run.run_id])
        if len(groups) == count:
            break
    for name in names_in(root / "runs") if sweeps else ():
        if (sweep := sweep_of(name)) in sweeps:
            groups[sweep].append(name)
    return [[RunDir(root / "runs" / each) for each in sorted(group, key=index_of)] for group in groups.values()]


def _newest_first(root: Path, wanted: Callable[[str], bool] = bool) -> Iterator[RunDir]:
    """Yield the wanted runs in the order of the index. Runs that are missing in the index, which may be lost or cut,
    come last, sorted by age.
    """
    names = _indexed(root)
    for name in filter(wanted, reversed(names)):
        if os.path.isdir(f"{root}/runs/{name}"):
            yield RunDir(root / "runs" / name)
    known = set(names)
    missed = [name for name in names_in(root / "runs") if name not in known and wanted(name)]
    for name in sorted(missed, key=lambda name: _changed(root / "runs" / name), reverse=True):
        yield RunDir(root / "runs" / name)


def _indexed(root: Path) -> list[str]:
    """Return the ids in the index, oldest first, including removed runs."""
    try:
        data = read_regular(root / "index", MOST_LINES)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(
            f"{root}/index can't be read: {error.strerror}", "remove the file: orch rebuilds it from the runs"
        ) from error
    return list(dict.fromkeys(data.decode("utf-8", "replace").split()))


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it was removed after the listing
        return 0.0


def names_in(folder: Path | str) -> list[str]:
    """Return the names in a folder, except hidden names; empty if the folder does not exist."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def newest_named(root: Path, name: str) -> RunDir | None:
    """Return the newest run or point whose job has this name. Return None if there is no such run, or if the name
    is a run's id.
    """
    if name in ("", "last") or os.path.isdir(f"{root}/runs/{name}"):
        return None
    return next(_newest_first(root, lambda run_id: name_of(run_id) == name), None)


def find_run(root: Path, reference: str, *, newest: bool = True) -> RunDir:
    """Return the run with this id or unique prefix, or the newest run for `last`. Raises RunNotFoundError unless
    exactly one run matches.

    With `newest`, a job's name selects its newest run. Operations that end or remove runs pass False.
    """
    if newest and (named := newest_named(root, reference)) is not None:
        reference = named.run_id if (sweep := sweep_of(named.run_id)) is None else sweep
    if reference == "last":
        if runs := newest_runs(root, 1):
            if (sweep := sweep_of(runs[0].run_id)) is not None:
                raise RunNotFoundError(
                    f"last is the sweep {sweep}, but this command needs one run",
                    f"name one of its runs: {runs[0].run_id}",
                )
            return runs[0]
        raise RunNotFoundError("there are no runs yet", "start one: orch submit JOB --profile PROFILE")
    if not reference.startswith(".") and "/" not in reference and os.path.exists(f"{root}/runs/{reference}/run.json"):
        return RunDir(root / "runs" / reference)  # a whole id needs no look at all runs
    names = names_in(root / "runs")
    matches = [name for name in names if name == reference] or [name for name in names if name.startswith(reference)]
    sweeps = {sweep_of(name) for name in matches}
    if reference and len(sweeps) == 1 and (sweep := sweeps.pop()) is not None and sweep.startswith(reference):
        raise RunNotFoundError(f"{sweep} is a sweep of {len(matches)} runs", f"name one of them: {min(matches)}")
    if len(matches) == 1 and reference:
        return RunDir(root / "runs" / matches[0])
    deleted = [name for name in names_in(root / "live") if reference and name.startswith(reference)]
    if not matches and len(deleted) == 1:
        raise RunNotFoundError(f"the folder of run {deleted[0]} was deleted, and the run may still be live", DELETED)
    if not matches and (elsewhere := _handed_over(root, reference)) is not None:
        run_id, host, command = elsewhere
        raise RunNotFoundError(
            f"{host} supervises run {run_id}, and the run's files are on that machine",
            f"run this command on that machine, for example: {command} pull {run_id}",
        )
    if not matches or not reference:
        raise RunNotFoundError(f"no run is called '{reference}'", "orch status -a lists all runs")
    shown = ", ".join(sorted(matches)[:5]) + (" ..." if len(matches) > 5 else "")
    raise RunNotFoundError(f"{len(matches)} run ids start with '{reference}': {shown}", "type more of the run id")


def _handed_over(root: Path, reference: str) -> tuple[str, str, str] | None:
    """Return (run, host, command that runs orch on that host) for a run that was handed over to another host.

    Return None unless exactly one such run has an id that begins with `reference`.
    """
    names = [name for name in names_in(root / "elsewhere") if reference and name.startswith(reference)]
    if len(names) != 1:
        return None
    kept = RunDir(root / "elsewhere").read(names[0]) or {}
    way = kept.get("ssh_command") or f"ssh {kept.get('host')}"
    return names[0].removesuffix(".json"), str(kept.get("host")), f"{way} {kept.get('orch')}"


def tidy(run: RunDir) -> None:
    """Remove the files that an ended run does not need: incomplete files that killed processes left, the nodes' tasks,
    secrets, the start lock, and reserve files.

    Incomplete files whose writer still runs are kept, because another command may be writing the run's verdict.
    """
    begun = [*run.path.glob(".*.tmp"), *run.path.glob("nodes/*/.*.tmp"), *run.path.glob("nodes/*/*.tmp")]
    left = [path for path in begun if not files.is_being_written(path)]
    for path in (
        *left,
        run.path / "secrets.json",
        run.path / "starting",
        *run.path.glob("nodes/*/task.json"),
        run.path / "reserve.json",
        *run.path.glob("nodes/*/reserve.json"),
        *run.path.glob("nodes/*/events.jsonl.reserve"),
        *run.path.glob("claims/*"),
    ):
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):
        (run.path / "claims").rmdir()


def remove_run(root: Path, run: RunDir) -> None:
    """Delete a run's folder and its live mark (the file in ROOT/live). Readers of the index skip removed runs. With the
    last run of a sweep, the sweep's shared files are deleted.

    The folder is renamed first, because another command may be writing into it. The new name identifies the deleting
    process. If that process is killed, `orch gc` can delete the rest at once.
    """
    aside = Path(files.temporary_name(run.path.with_name(f"{REMOVED_PREFIX[1:]}{run.run_id}")))
    try:
        os.rename(run.path, aside)
    except OSError as error:
        run.check_is_there()  # raises if another command was faster
        raise StoreError(f"{run.path} can't be removed: {error}") from error
    try:
        delete_folder(aside)
    except OSError as error:
        raise StoreError(f"{run.path} can't be removed: {error}") from error
    retire(root, run)
    sweep = sweep_of(run.run_id)
    if sweep is not None and not any(sweep_of(name) == sweep for name in names_in(root / "runs")):
        remove_sweep(root, sweep)


def delete_folder(path: Path) -> None:
    """Delete a folder. If the path is a link, delete the link and the folder to which it leads."""
    files.remove_tree(path.resolve())
    if path.is_symlink():
        path.unlink()


def remove_sweep(root: Path, sweep: str) -> None:
    """Delete the shared files of a sweep if none of its points exists any more."""
    folder = root / "sweeps" / sweep
    try:
        delete_folder(folder)
    except OSError as error:
        raise StoreError(f"{folder} can't be removed: {error}") from error
