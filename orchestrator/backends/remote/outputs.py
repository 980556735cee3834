"""What a run's program has written elsewhere, brought here: changed files only, verified, resumable, within a limit."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.backends.remote.checkpoints import PIECE, bring_file, partial_of, remote_checkpoints
from orchestrator.backends.remote.output_record import Home, Kept, Left, Sizes
from orchestrator.backends.remote.transfer import sole_writer
from orchestrator.backends.settings import remote_folder
from orchestrator.errors import BackendError
from orchestrator.protocol.checkpoints.checksum import Algorithm, Checksum
from orchestrator.protocol.checkpoints.weight_files import names_weights
from orchestrator.protocol.files import sync_filesystem, write_atomic
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
from orchestrator.transport.rpc import CALL_SECONDS

if TYPE_CHECKING:
    from orchestrator.transport.rpc import Session

SMALL: Final = 1 << 18  # files up to here come many at a time
BATCH: Final = 4 << 20
MOST_FILES: Final = 2000  # of one request
MOST_LISTED: Final = 64 << 20  # bytes of the names of a machine's outputs
HASH_BYTES: Final = 80  # of one in an answer
LIST_SECONDS: Final = 600.0
HASH_SLOWEST: Final = 20 << 20  # bytes a second
ROUNDS: Final = 3  # at the end: what has changed while it was copied is copied again
LEAST_FREE: Final = 64 << 20
MOST_NAMED: Final = 3
LOOKS_IN_VAIN: Final = 2  # a file that changed in so many looks in a row is copied between two changes
STILL_NS: Final = 1_000_000_000  # a file of weights must be unchanged for so long
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Outputs:
    """The outputs of one node, between the machine that a session speaks to and here."""

    def __init__(self, run: RunDir, node: int, stop: Callable[[], bool] = lambda: False) -> None:
        self.run, self.node, self.stop = run, node, stop
        self.folder = Path(output_folder(str(run.path)))
        self.seen: dict[str, Entry] = {}  # at the last look
        self.changed: dict[str, int] = {}  # by name: how many looks in a row have found the file changed
        self.problems: dict[str, str] = {}  # of files that can't be written here, by name

    def bring(self, session: Session, *, final: bool, limited: bool = True, sizes: Sizes | None = None) -> Left:
        """Copy new files. While the run continues (not `final`), files that changed since the last call are left out.

        A file that several looks in a row have found changed is copied too, if it does not change during the copy.

        `sizes` has the sizes of the other nodes' outputs; all nodes share the job's limit if the outputs are `limited`.
        Returns the outputs that were not copied.
        Raises BackendError if the machine is out of reach, or the disk here is full.
        """
        found, host = _Listing.of(session, self.run, self.node), session.address.host
        if found.is_empty and not Home.read(self.run, self.node, host).files:  # as most of many nodes: none waits
            return Left()
        with sole_writer(self.run.path, "outputs.lock"):
            home = Home.read(self.run, self.node, host)
            if final:
                home.forget_lost()
            for number in range(ROUNDS if final else 1):
                found = _Listing.of(session, self.run, self.node) if number else found
                beside = sizes.beside(self.node) if sizes and self.node else 0  # node 0 comes first
                wanted = self._wanted(found, beside) if limited else set(found.files)
                try:
                    self._bring_once(session, home, found, wanted, final=final)
                finally:
                    if sizes:
                        sizes.note(self.node, home.bytes)
                missing = {name for name, entry in found.files.items() if not home.has(name, entry)}
                if missing.isdisjoint(wanted):
                    break
            if final and home.files:
                sync_filesystem(self.run.path)
        count = len(missing) + len(found.unreadable)
        return Left(count, sum(found.files[name].size for name in missing), self._why(missing, wanted, found))

    def _wanted(self, found: _Listing, beside: int) -> set[str]:
        """Return which of the files are to be here, within the limit, of which other nodes have so much."""
        return chosen(found.files, self.run.plan().outputs.max_size - beside)

    def _bring_once(
        self, session: Session, home: Home, found: _Listing, wanted: Collection[str], *, final: bool
    ) -> None:
        """Delete here what is to be here no more, and copy what is new."""
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
            and (final or before.get(name) == entry or self._may_be_copied_at_once(name, entry, found))
        }
        home.note(found.files)
        if lacking:
            home.write()  # before anything of it is here
        try:
            self._fetch(session, home, found, lacking)
        finally:
            if home.note(found.files) or gone or home.passed_over != found.passed_over:
                home.passed_over = found.passed_over
                home.write()

    def _may_be_copied_at_once(self, name: str, entry: Entry, found: _Listing) -> bool:
        """Tell whether a file that changes from look to look may be copied between two of its changes.

        A file of weights must be unchanged for a moment, because a program may pause while it saves. The files of a
        checkpoint that is a folder belong together, so they are copied only once they no longer change.
        """
        if self.changed.get(name, 0) < LOOKS_IN_VAIN or checkpoint_of(name) not in (None, name):
            return False
        return not names_weights(os.path.basename(name)) or found.time_ns - entry.mtime_ns >= STILL_NS

    def _why(self, missing: Collection[str], wanted: Collection[str], found: _Listing) -> str:
        """Return why files are not here, in words that follow their number."""
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

    # -- here

    def _delete(self, home: Home, name: str) -> None:
        if not home.files.pop(name).is_same:
            place = self.folder / name
            try:
                place.unlink(missing_ok=True)
                for above in place.parents:
                    if above == self.folder:
                        break
                    above.rmdir()
            except OSError:  # a folder that holds more
                pass

    def _place(self, name: str) -> Path:
        place = self.folder / name
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.is_dir() and not place.is_symlink():
            raise OSError(errno.EISDIR, "a folder of that name is here")
        return place

    def _keep(self, home: Home, name: str, entry: Entry, sha256: str, write: Callable[[Path], bool]) -> None:
        """Have a file written, with its mode and time; a full disk is a BackendError, another problem is noted."""
        try:
            place = self._place(name)
            if not write(place):
                return
            os.chmod(place, 0o700 if entry.executable else 0o600)
            os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns))
        except OSError as error:
            if error.errno in _FULL:
                raise BackendError(
                    f"{self.folder}: {error.strerror}: the outputs of node {self.node} do not fit", "make room there"
                ) from error
            self.problems[name] = error.strerror or str(error)
            return
        home.files[name] = Kept(*entry[:4], sha256)

    # -- from there

    def _fetch(self, session: Session, home: Home, found: _Listing, lacking: Mapping[str, Entry]) -> None:
        lacking = self._without_same(session, home, found, lacking)
        with session.for_bytes(sum(entry.size for entry in lacking.values())) as fast:
            small = {name: entry for name, entry in lacking.items() if entry.size <= SMALL}
            for names in _batches(small, BATCH if fast.is_own else PIECE):  # else others wait behind it for answers
                if self.stop():
                    return
                self._check_room(sum(lacking[name].size for name in names))
                self._fetch_small(fast, home, found, {name: lacking[name] for name in names})
            for name, entry in lacking.items():
                if entry.size > SMALL and not self.stop():
                    self._check_room(entry.size)
                    self._fetch_large(fast, home, name, entry, found)

    def _check_room(self, count: int) -> None:
        """Raise BackendError where so many bytes would leave too little for the records of this and other runs."""
        free = shutil.disk_usage(self.run.path).free
        if free < count + LEAST_FREE:
            said = f"{size(free)} are free, and {size(count)} are to come from node {self.node}"
            raise BackendError(f"no space left on device for {self.folder}: {said}", "make room there")

    def _fetch_small(self, session: Session, home: Home, found: _Listing, batch: Mapping[str, Entry]) -> None:
        asked = json.dumps([[found.path(entry), entry.size, entry.mtime_ns] for entry in batch.values()]).encode()
        most, roots = sum(each.size for each in batch.values()), [*found.roots.values()]
        reply, data = session.call("read_small_files", asked, most=most, roots=roots)
        offset = 0
        for (name, entry), sha256 in zip(batch.items(), reply["sha256"], strict=False):
            if sha256 is not None:
                content = data[offset : offset + entry.size]
                offset += entry.size
                if hashlib.sha256(content).hexdigest() == sha256:
                    self._keep(home, name, entry, sha256, functools.partial(_write, content=content))
        home.write()

    def _fetch_large(self, session: Session, home: Home, name: str, entry: Entry, found: _Listing) -> None:
        path, below = found.path(entry), found.below(entry)
        sha256 = _hashes(session, [(path, entry.size)], [below])[0]
        if sha256 is not None:
            checksum = Checksum(Algorithm.SHA256, sha256)
            write = functools.partial(bring_file, session, path, size=entry.size, checksum=checksum, below=below)
            try:
                self._keep(home, name, entry, sha256, write)
            except BackendError as error:
                if not error.transient:  # the disk here is full, and the run's own records need the room
                    partial_of(self.folder / name, sha256).unlink(missing_ok=True)
                raise
            home.write()

    def _without_same(
        self, session: Session, home: Home, found: _Listing, lacking: Mapping[str, Entry]
    ) -> Mapping[str, Entry]:
        """Note the files that node 0 has with the same content; return the others."""
        if self.node == 0:
            return lacking
        first = Home.read(self.run, 0).files
        prefix = f"node_{self.node}/"
        pairs = [(name, first.get(name.removeprefix(prefix))) for name in lacking]
        alike = [(name, kept) for name, kept in pairs if kept is not None and kept.size == lacking[name].size]
        paths = [(found.path(lacking[name]), kept.size) for name, kept in alike]
        hashes = _hashes(session, paths, found.roots.values())
        for (name, kept), sha256 in zip(alike, hashes, strict=True):
            if sha256 == kept.sha256:
                home.files[name] = Kept(*lacking[name][:4], sha256, is_same=True)
        return {name: entry for name, entry in lacking.items() if not home.has(name, entry)}


@dataclass(frozen=True)
class _Listing:
    """What a look at a machine has found, by the names at home."""

    files: dict[str, Entry]
    roots: Mapping[str, str]
    unreadable: tuple[tuple[str, str], ...]
    passed_over: list[str]
    time_ns: int  # by the machine's clock

    @staticmethod
    def of(session: Session, run: RunDir, node: int) -> _Listing:
        plan = run.plan()
        code_dir = plan.first.code_dir or f"{remote_folder(run)}/code"
        reply, data = session.call(
            "list_outputs", timeout=LIST_SECONDS, run_dir=remote_folder(run), code_dir=code_dir,
            checkpoints=remote_checkpoints(run), rules=plan.outputs.to_json(), most=MOST_LISTED,
        )  # fmt: skip
        host, roots = session.address.host, reply["roots"]
        try:
            if unknown := sorted(roots.keys() - ROOTS):
                raise ValueError(f"{unknown[0]!r:.100} is none of a run's folders")
            entries = [_checked(Entry(*values), roots) for values in data_of(host, "list_outputs", data)]
        except ValueError as error:
            raise BackendError(f"{host}: its list of outputs can't be right: {error}") from error
        unreadable = tuple((root, path) for root, path in reply["unreadable"])
        return _Listing(home_names(entries, node), roots, unreadable, reply["passed_over"], reply["time_ns"])

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing to bring or to speak of."""
        return not (self.files or self.unreadable or self.passed_over)

    def path(self, entry: Entry) -> str:
        return f"{self.roots[entry.root]}/{entry.path}"

    def below(self, entry: Entry) -> str:
        """Return the folder below which no link is followed on the way to a file.

        A container can replace its own view of the run's folder by a link, so that folder itself is not trusted.
        """
        is_in_container = entry.root in (IN_CONTAINER, ABOVE_IN_CONTAINER)
        return self.roots.get(BESIDE if is_in_container else entry.root, self.roots[entry.root])

    def hides(self, kept: Kept) -> bool:
        """Tell whether a file may be there though it was not seen: in a folder that is missing or can't be read."""
        unseen = [above for root, above in self.unreadable if root == kept.root]
        return kept.root not in self.roots or any(
            not above or f"{kept.path}/".startswith(f"{above}/") for above in unseen
        )


def _checked(entry: Entry, roots: Collection[str]) -> Entry:
    """Return a file that another machine names; ValueError where its path leads out of the run's outputs."""
    if entry.root not in roots or not 0 <= entry.size < 1 << 62 or abs(entry.mtime_ns) >= 1 << 62:
        raise ValueError(f"{entry!r} is no file")
    if leads_out(entry.path):
        raise ValueError(f"{entry.path!r} leads out of it")
    return entry


def _hashes(session: Session, files: list[tuple[str, int]], roots: Collection[str]) -> list[str | None]:
    """Return the sha256 of each [path, size] in these folders of a machine; None if the file can't be read."""
    found: list[str | None] = []
    for start in range(0, len(files), MOST_FILES):
        part = files[start : start + MOST_FILES]
        patience = CALL_SECONDS + sum(size for _, size in part) / HASH_SLOWEST
        asked, most = json.dumps([path for path, _ in part]).encode(), HASH_BYTES * len(part)
        answer = session.call("hash_files", asked, timeout=patience, most=most, roots=[*roots])
        hashes = data_of(session.address.host, "hash_files", answer[1])
        if len(hashes) != len(part):
            raise BackendError(f"{session.address.host}: it hashed {len(hashes)} files of {len(part)}")
        found += hashes
    return found


def _batches(files: Mapping[str, Entry], most: int) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name, entry in files.items():
        if batch and (size + entry.size > most or len(batch) == MOST_FILES):
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += entry.size
    if batch:
        yield batch


def _write(place: Path, content: bytes) -> bool:
    write_atomic(place, content, mode=0o600, durable=False)
    return True


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - MOST_NAMED} more" if len(listed) > MOST_NAMED else ""
    return ", ".join(listed[:MOST_NAMED]) + more


def left_on(session: Session, run: RunDir) -> int:
    """Return how many output files of a run are on a machine and not here, as they were copied from it."""
    host = session.address.host
    nodes = [int(folder.name) for folder in run.path.glob("nodes/*") if folder.name.isdecimal()]
    here = {kept[:4] for node in nodes for kept in Home.read(run, node, host).files.values()}
    found = _Listing.of(session, run, 0)
    return sum(entry[:4] not in here for entry in found.files.values()) + len(found.unreadable)
