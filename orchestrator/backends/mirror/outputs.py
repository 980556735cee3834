"""Copies a run's outputs to this machine. Only changed files are copied, up to a size limit. Copies are verified and
resumable.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.backends.mirror.checkpoints import remote_checkpoints
from orchestrator.backends.mirror.fetch import Landed, Wanted, fetch
from orchestrator.backends.mirror.output_record import Home, Kept, Left, Sizes
from orchestrator.backends.mirror.policy import CHANGING, REWRITTEN, STANDING, Policy
from orchestrator.backends.settings import remote_folder
from orchestrator.errors import BackendError
from orchestrator.protocol.arriving import partial_of, stem_of
from orchestrator.protocol.checkpoints.weight_files import names_weights
from orchestrator.protocol.files import locked, sync_filesystem
from orchestrator.protocol.layout import output_folder
from orchestrator.protocol.outputs import (
    ABOVE_IN_CONTAINER,
    BESIDE,
    IN_CONTAINER,
    ROOTS,
    Entry,
    checkpoint_of,
    chosen,
    home_names,
    leads_out,
)
from orchestrator.protocol.quantities import size
from orchestrator.runs.store import RunDir
from orchestrator.transport.answers import data_of

if TYPE_CHECKING:
    from orchestrator.transport.machine import Machine

MANY_FILES: Final = 5000  # after so many copied files, the record is written
MANY_BYTES: Final = 1 << 16  # bytes that count as one more file
ROOM_AT_ONCE: Final = 16 << 20  # bytes for which the free space is looked up once
MOST_LISTED: Final = 64 << 20  # bytes of the names of a machine's outputs
LIST_SECONDS: Final = 600.0
ROUNDS: Final = 3  # at the end: files that changed during the copy are copied again
LEAST_FREE: Final = 64 << 20
MOST_NAMED: Final = 3
LOOKS_IN_VAIN: Final = 1  # a file that changed in so many looks in a row is copied between two changes
SMALL: Final = 1 << 18  # bytes: smaller files are copied first
_PART: Final = re.compile(r"\..+\.\d+--?\d+\.partial", re.DOTALL)  # the name of a file while it arrives
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # the other files won't fit either


class Outputs:
    """Copies the outputs of one node from its machine to this machine."""

    def __init__(self, run: RunDir, node: int, stop: Callable[[], bool] = lambda: False) -> None:
        self.run, self.node, self.stop = run, node, stop
        self.folder = Path(output_folder(str(run.path)))
        self.seen: dict[str, Entry] = {}  # the files at the last look
        self.changed: dict[str, int] = {}  # by name: the number of looks in a row at which the file had changed
        self.problems: dict[str, str] = {}  # why files can't be written on this machine, by name

    def bring(self, machine: Machine, *, final: bool, limited: bool = True, sizes: Sizes | None = None) -> Left:
        """Copy new files. While the run continues (not `final`), files that changed since the last call are skipped.

        A file that changed in several calls in a row is copied nevertheless, unless it changes during the copy. `sizes`
        has the sizes of the other nodes' outputs, because all nodes share the job's limit if the outputs are `limited`.
        Return the outputs that were not copied. Raises BackendError if the machine is unreachable, or if this machine's
        disk is full.
        """
        found, host = _Listing.of(machine, self.run, self.node), machine.name
        if (
            found.is_empty and not Home.read(self.run, self.node, host).files
        ):  # most nodes have no outputs, so they need not wait for the lock
            return Left()
        with locked(self.run.path / "outputs.lock"):
            home = Home.read(self.run, self.node, host)
            if final:
                home.forget_lost()
            for number in range(ROUNDS if final else 1):
                found = _Listing.of(machine, self.run, self.node) if number else found
                beside = sizes.beside(self.node) if sizes and self.node else 0  # node 0 has priority
                most = self.run.plan().outputs.max_size - beside
                wanted = chosen(found.files, most) if limited else set(found.files)
                try:
                    self._bring_once(machine, home, found, wanted, final=final)
                finally:
                    if sizes:
                        sizes.note(self.node, home.bytes)
                missing = {name for name, entry in found.files.items() if not home.has(name, entry)}
                if missing.isdisjoint(wanted):
                    break
            if final:
                self._remove_old_parts(home, missing)
            if final and home.files:
                sync_filesystem(self.run.path)
        count = len(missing) + len(found.unreadable)
        return Left(count, sum(found.files[name].size for name in missing), self._why(missing, wanted, found))

    def _bring_once(
        self, machine: Machine, home: Home, found: _Listing, wanted: Collection[str], *, final: bool
    ) -> None:
        """Delete copies on this machine that are no longer wanted, and copy new files."""
        before, self.seen = self.seen, found.files
        self.changed = {
            name: self.changed.get(name, 0) + 1
            for name, entry in found.files.items()
            if name in before and before[name] != entry
        }
        gone = [name for name, kept in home.files.items() if name not in found.files and not found.hides(kept)]
        for name in (*gone, *(name for name in found.files if name in home.files and name not in wanted)):
            self._delete(home, name)
        lacking = {
            name: entry
            for name, entry in found.files.items()
            if name in wanted
            and not home.has(name, entry)
            and (final or before.get(name) == entry or self._may_be_copied_at_once(name))
        }
        home.note(found.files)
        if lacking:
            home.write()  # before the first of these files arrives
        try:
            self._fetch(machine, home, found, lacking, final)
        finally:
            if home.note(found.files) or gone or home.passed_over != found.passed_over:
                home.passed_over = found.passed_over
                home.write()

    def _may_be_copied_at_once(self, name: str) -> bool:
        """Return True if a file that changes again and again may be copied although it will change once more.

        The files of a checkpoint folder belong together, so they are copied only once they no longer change.
        """
        return self.changed.get(name, 0) >= LOOKS_IN_VAIN and checkpoint_of(name) in (None, name)

    def _why(self, missing: Collection[str], wanted: Collection[str], found: _Listing) -> str:
        """Return the reasons why files were not copied. They are the end of a sentence that begins with the number of
        files.
        """
        over = len([name for name in missing if name not in wanted])
        refused = sorted(name for name in missing if name in wanted and name in self.problems)
        changing = sorted(name for name in missing if name in wanted and name not in self.problems)
        reasons = {
            f"{over} over outputs.max_size of the job": over,
            f"can't be read there: {_some(path for _, path in found.unreadable)}": found.unreadable,
            f"can't be written here: {_some(refused)}: {self.problems[refused[0]] if refused else ''}": refused,
            f"changed while they were copied: {_some(changing)}": changing,
        }
        return "; ".join(words for words, applies in reasons.items() if applies)

    # -- files on this machine

    def _delete(self, home: Home, name: str) -> None:
        if not home.files.pop(name).is_same:
            place = self.folder / name
            try:
                place.unlink(missing_ok=True)
                for above in place.parents:
                    if above == self.folder:
                        break
                    above.rmdir()
            except OSError:  # the folder has other files
                pass

    def _remove_old_parts(self, home: Home, missing: Collection[str]) -> None:
        """Remove partial files that interrupted copies of earlier versions have left. The partial files of `missing`
        are kept, because their copies will be resumed.
        """
        kept = {stem_of(partial_of(self.folder / name, "")) for name in missing}
        for above, folders, names in os.walk(self.folder / f"node_{self.node}" if self.node else self.folder):
            if above == str(self.folder):
                folders[:] = [each for each in folders if not each.startswith("node_")]
            for part in (f"{above}/{name}" for name in names if _PART.fullmatch(name)):
                if part.removeprefix(f"{self.folder}/") not in home.files and stem_of(part) not in kept:
                    os.unlink(part)

    # -- files from the other machine

    def _fetch(self, machine: Machine, home: Home, found: _Listing, lacking: Mapping[str, Entry], final: bool) -> None:
        first = Home.read(self.run, 0).files if self.node else {}
        for policy in (STANDING, CHANGING, REWRITTEN):
            files = {name: each for name, each in lacking.items() if self._policy(name, final=final) is policy}
            if files:
                wanted = self._wanted_of(files, found, first)
                unwritten = 0
                for landed in fetch(machine, wanted, policy, sum(entry.size for entry in files.values())):
                    self._keep(home, found, landed)
                    unwritten += 1 + landed.size // MANY_BYTES
                    if unwritten >= MANY_FILES:
                        home.write()
                        unwritten = 0

    def _policy(self, name: str, *, final: bool) -> Policy:
        if final or self.changed.get(name, 0) < LOOKS_IN_VAIN:
            return STANDING
        return REWRITTEN if names_weights(os.path.basename(name)) else CHANGING

    def _wanted_of(self, files: Mapping[str, Entry], found: _Listing, first: Mapping[str, Kept]) -> Iterator[Wanted]:
        """Make the folders of the files, and yield each file. `first` has the files of node 0, which may be identical.

        Raises BackendError if the next files would leave too little disk space for the records of this and other runs.
        """
        made, room = set[str](), 0
        for name, entry in sorted(files.items(), key=lambda each: each[1].size > SMALL):
            if self.stop():
                return
            room -= entry.size
            if room <= 0:
                self._check_room(entry.size + ROOM_AT_ONCE)
                room = ROOM_AT_ONCE
            target = f"{self.folder}/{name}"
            above = target.rpartition("/")[0]
            try:
                if above not in made:
                    os.makedirs(above, mode=0o700, exist_ok=True)
                    made.add(above)
            except OSError as error:
                self._refuse(name, error)
                continue
            path, below, same = (
                found.path(entry),
                found.below(entry),
                first.get(name.removeprefix(f"node_{self.node}/")),
            )
            yield Wanted(
                below, path[len(below) + 1 :], target, entry.size, entry.mtime_ns, executable=entry.executable,
                known=same.sha256 if same is not None and same.size == entry.size else "",
            )  # fmt: skip

    def _check_room(self, count: int) -> None:
        free = shutil.disk_usage(self.run.path).free
        if free < count + LEAST_FREE:
            more, kept = f"{size(count)} are to come from node {self.node}", f"{size(LEAST_FREE)} are kept for records"
            said = f"{size(free)} are free, {more}, and {kept}"
            raise BackendError(f"no space left on device for {self.folder}: {said}", "make room on that disk")

    def _refuse(self, name: str, error: OSError) -> None:
        """Note why a file can't be written on this machine. Raises BackendError if the disk is full."""
        if error.errno in _FULL:
            raise BackendError(
                f"{self.folder}: {error.strerror}: the outputs of node {self.node} do not fit", "make room on that disk"
            ) from error
        self.problems[name] = error.strerror or str(error)

    def _keep(self, home: Home, found: _Listing, landed: Landed) -> None:
        """Record that a file was copied, in the version that arrived."""
        name = landed.wanted.target[len(str(self.folder)) + 1 :]
        if landed.problem is not None:
            with contextlib.suppress(OSError):
                Path(partial_of(landed.wanted.target, landed.wanted.version)).unlink()  # frees its disk space
            self._refuse(name, landed.problem)
        elif landed.sha256:
            entry = found.files[name]
            if (entry.size, entry.mtime_ns) != (landed.size, landed.mtime_ns):
                entry = found.files[name] = entry._replace(size=landed.size, mtime_ns=landed.mtime_ns)
            home.files[name] = Kept(*entry[:4], landed.sha256, landed.is_known)


@dataclass(frozen=True)
class _Listing:
    """The output files on a machine, as a dict from the name that each file gets on this machine."""

    files: dict[str, Entry]
    roots: Mapping[str, str]
    unreadable: tuple[tuple[str, str], ...]
    passed_over: list[str]

    @staticmethod
    def of(machine: Machine, run: RunDir, node: int) -> _Listing:
        plan = run.plan()
        code_dir = plan.first.code_dir or f"{remote_folder(run)}/code"
        reply, data = machine.call(
            "list_outputs", timeout=LIST_SECONDS, run_dir=remote_folder(run), code_dir=code_dir,
            checkpoints=remote_checkpoints(run), rules=plan.outputs.to_json(), most=MOST_LISTED,
        )  # fmt: skip
        host, roots = machine.name, reply["roots"]
        try:
            if unknown := sorted(roots.keys() - ROOTS):
                raise ValueError(f"{unknown[0]!r:.100} is not a folder of a run")
            entries = [_checked(Entry(*values), roots) for values in data_of(host, "list_outputs", data)]
        except ValueError as error:
            raise BackendError(f"{host}: its list of outputs is not valid: {error}") from error
        unreadable = tuple((root, path) for root, path in reply["unreadable"])
        return _Listing(home_names(entries, node), roots, unreadable, reply["passed_over"])

    @property
    def is_empty(self) -> bool:
        """Return True if there is nothing to copy or to report."""
        return not (self.files or self.unreadable or self.passed_over)

    def path(self, entry: Entry) -> str:
        return f"{self.roots[entry.root]}/{entry.path}"

    def below(self, entry: Entry) -> str:
        """Return the folder below which symbolic links are not followed.

        Even the run's folder is not trusted, because a container can replace it by a link.
        """
        is_in_container = entry.root in (IN_CONTAINER, ABOVE_IN_CONTAINER)
        return self.roots.get(BESIDE if is_in_container else entry.root, self.roots[entry.root])

    def hides(self, kept: Kept) -> bool:
        """Return True if the machine may have the file in a folder that is missing or can't be read at the moment."""
        unseen = [above for root, above in self.unreadable if root == kept.root]
        return kept.root not in self.roots or any(
            not above or f"{kept.path}/".startswith(f"{above}/") for above in unseen
        )


def _checked(entry: Entry, roots: Collection[str]) -> Entry:
    """Return an entry of a machine's list of outputs unchanged. Raises ValueError if it is invalid, or if its path
    leads out of the run's folders.
    """
    if entry.root not in roots or not 0 <= entry.size < 1 << 62 or abs(entry.mtime_ns) >= 1 << 62:
        raise ValueError(f"{entry!r} does not describe a file")
    if leads_out(entry.path):
        raise ValueError(f"{entry.path!r} leads out of the run's folders")
    return entry


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - MOST_NAMED} more" if len(listed) > MOST_NAMED else ""
    return ", ".join(listed[:MOST_NAMED]) + more


def left_on(machine: Machine, run: RunDir) -> int:
    """Return how many output files of a run are on a machine but were not copied to this one."""
    host = machine.name
    nodes = [int(folder.name) for folder in run.path.glob("nodes/*") if folder.name.isdecimal()]
    here = {kept[:4] for node in nodes for kept in Home.read(run, node, host).files.values()}
    found = _Listing.of(machine, run, 0)
    return sum(entry[:4] not in here for entry in found.files.values()) + len(found.unreadable)
