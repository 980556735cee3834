"""Copies the code folder when a run is submitted, so that later edits do not change the code that the ranks run."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from orchestrator.errors import UsageError
from orchestrator.protocol.quantities import size
from orchestrator.runs.files.ignore_rules import LeftOut, Rules, measure_left_out, unreadable
from orchestrator.specs.never_shipped import why_never_shipped

_GIT: Final = ("git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.quotePath=false")
_GIT_SECONDS: Final = 10
_MAX_UNTRACKED: Final = 100
_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Git:
    """The git state of a folder. `diff` is a hash of the uncommitted changes to tracked files."""

    commit: str | None = None
    dirty: bool = False
    diff: str | None = None
    untracked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """A copy of the code, and the git state of the code folder when it was copied.

    The hash covers paths, kinds of entries, executable bits and contents.
    """

    files: int
    bytes: int
    sha256: str
    git: str | None
    dirty: bool
    diff: str | None
    untracked: tuple[str, ...]
    listing: dict[str, tuple[str, str]] = field(default_factory=dict)  # path -> (kind d | l | x | f, sha256)
    left_out: LeftOut = field(default_factory=LeftOut)
    ignored: tuple[str, ...] = ()  # ignored paths and links to folders; a folder's path ends with a slash


@dataclass(frozen=True)
class _Entry:
    """An item to copy: a folder, a link (with its target inside the folder), or a file."""

    path: str
    size: int = 0
    executable: bool = False
    is_folder: bool = False
    link: str | None = None
    outside: str = ""  # the path of the original file, if a link leads to a file outside of the code folder


def measure(
    code_dir: Path, ignore_file: str, max_size: int, named: Sequence[str] | None = None
) -> tuple[int, int, list[tuple[str, str]]]:
    """Return (number of files, bytes) that `take` would copy, and a list of (path, target) of the links to files
    outside of the folder, which `take` would copy. Raises UsageError if `take` would raise it.
    """
    entries, _, _ = _survey(code_dir.resolve(), None, ignore_file, max_size, named)
    return sum(not entry.is_folder for entry in entries), sum(entry.size for entry in entries), _outside(entries)


def _outside(entries: Sequence[_Entry]) -> list[tuple[str, str]]:
    return [(entry.path, entry.outside) for entry in entries if entry.outside]


def take(
    code_dir: Path, destination: Path, ignore_file: str, max_size: int, named: Sequence[str] | None = None
) -> Snapshot:
    """Copy the code folder into `destination`, which must be empty or missing.

    A link to a file outside the folder becomes a copy of that file. Links to folders that are not copied, dangling
    links, sockets, pipes and devices are left out. `named` lists ignored files that are copied anyway. If `named` is
    None, the size of the ignored files is not computed, because a run on this machine can read the code folder itself.
    Raises UsageError before any file is copied.
    """
    code_dir = code_dir.resolve()
    entries, ignored, rules = _survey(code_dir, destination.resolve(), ignore_file, max_size, named)
    if named is not None and all(entry.is_folder for entry in entries):
        for path in ignored:
            if why := rules.why_left_out(f"{path}x" if path.endswith("/") else path):
                raise UsageError(
                    f"{code_dir}: every file in this folder is ignored, {path} by {why}", "change that line"
                )
    total = sum(entry.size for entry in entries)
    git = git_state(code_dir)
    fresh = not destination.exists()
    try:
        digest, listing = _copy_all(entries, code_dir, destination)
    except BaseException:
        if fresh:
            shutil.rmtree(destination, ignore_errors=True)
        raise
    files = sum(not entry.is_folder for entry in entries)
    left = LeftOut() if named is None else measure_left_out(code_dir, ignored, rules, named)
    left = replace(left, copied=_outside(entries))
    return Snapshot(files, total, digest, git.commit, git.dirty, git.diff, git.untracked, listing, left, tuple(ignored))


def left_out(code_dir: Path, ignore_file: str, named: Sequence[str]) -> LeftOut:
    """Return the sizes of the files that ignore files exclude from the copy, and the links that are not copied."""
    rules = Rules.of(code_dir.resolve(), ignore_file)
    return measure_left_out(code_dir.resolve(), ignored_paths(code_dir, ignore_file), rules, named)


def ignored_paths(code_dir: Path, ignore_file: str) -> list[str]:
    """Return the paths that lines of ignore files exclude, and the links to folders that `take` does not copy. A
    folder's path ends with a slash.
    """
    code_dir, ignored = code_dir.resolve(), list[str]()
    for _ in _walk(code_dir, None, Rules.of(code_dir, ignore_file), ignored):
        pass
    return ignored


def lay_ignored(
    code_dir: Path, copy: Path, ignore_file: str, max_size: int, ignored: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Add the ignored files of the code folder to the copy. Return the checkpoints that were linked instead of being
    copied. If `ignored` is None, the folder is searched for files that match an ignore pattern.
    """
    if ignored is None:
        paths = ignored_paths(code_dir, ignore_file) if code_dir.is_dir() else ()
        ignored = [path for path in paths if not os.path.lexists(copy / path)]
    if not ignored:
        return ()
    from orchestrator.runs.files.laid_files import lay

    return lay(code_dir.resolve(), copy, ignored, max_size)


def _survey(
    code_dir: Path, destination: Path | None, ignore_file: str, max_size: int, named: Sequence[str] | None = ()
) -> tuple[list[_Entry], list[str], Rules]:
    """Return (entries to copy, ignored paths, ignore rules). The entries are in the order in which they are hashed.

    Raises UsageError if a file must not be copied.
    """
    if not code_dir.is_dir():
        raise UsageError(
            f"{code_dir}: the code folder does not exist or is not a folder",
            "set `code.dir` in the job to a folder that exists",
        )
    if why := why_never_shipped(code_dir):
        raise UsageError(f"{why}, so it is never sent", "put job and code into a folder of their own")
    rules, ignored = Rules.of(code_dir, ignore_file), list[str]()
    found = {entry.path: entry for entry in _walk(code_dir, destination, rules, ignored)}
    for path in named or ():
        if path not in found and rules.is_left_out_by_line(path):
            parents = [parent.as_posix() for parent in Path(path).parents if parent != Path()]
            found |= {parent: _Entry(parent, is_folder=True) for parent in parents if parent not in found}
            found[path] = _file(code_dir, path)
    ignored = [path for path in ignored if path not in found]
    entries = sorted(found.values(), key=lambda e: os.fsencode(e.path))
    total = sum(entry.size for entry in entries)
    if total > max_size:
        raise _too_large(code_dir, entries, total, max_size, ignore_file)
    return entries, ignored, rules


def retake(snapshot: Path, destination: Path, listing: Mapping[str, Sequence[str]]) -> None:
    """Copy only the files that an earlier `take` listed, so that files that ranks wrote beside their code are not
    copied.

    Raises UsageError, which names the files, if some files have changed since then.
    """
    fresh = not destination.exists()
    entries = []
    for path, (kind, _) in listing.items():
        link = os.readlink(snapshot / path) if kind == "l" and (snapshot / path).is_symlink() else None
        entries.append(_Entry(path, executable=kind == "x", is_folder=kind == "d", link=link))
    try:
        _, found = _copy_all(entries, snapshot, destination)
        if changed := [path for path, entry in listing.items() if found[path] != tuple(entry)]:
            raise UsageError(
                f"{snapshot}: {', '.join(changed[:5])}: changed since they were sent to the ranks",
                "the run changed its own code, so it can't be repeated; submit the job file instead",
            )
    except BaseException:
        if fresh:
            shutil.rmtree(destination, ignore_errors=True)
        raise


def _walk(top: Path, destination: Path | None, rules: Rules, left: list[str]) -> Iterator[_Entry]:
    """Yield the entries to copy, and append to `left` the paths that a line of an ignore file excludes.

    A link to a folder that is not copied is appended to `left` too, because a run on this machine can follow it.
    """
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            found = list(os.scandir(top / folder))
        except OSError as error:
            raise unreadable(top / folder, error) from None
        for item in found:
            path = f"{folder}{item.name}"
            real_folder = item.is_dir(follow_symlinks=False)
            if (top / path) == destination:
                continue
            whole = f"{path}/" if real_folder else path
            rule = next(filter(rules.ignores, _names_of(item, path)), None)
            if rule is not None:
                left += [whole] if rules.line_of(rule) else []
                continue
            if real_folder:
                yield _Entry(path, is_folder=True)
                folders.append(f"{path}/")
            elif item.is_symlink():
                if (entry := _link(top, path, rules.ignores)) is not None:
                    yield entry
                elif os.path.isdir(top / path):
                    left.append(path)
            elif item.is_file(follow_symlinks=False):
                yield _file(top, path)


def _file(top: Path, path: str) -> _Entry:
    try:
        info = (top / path).stat()
    except OSError as error:
        raise unreadable(top / path, error) from None
    if not os.access(top / path, os.R_OK):
        raise unreadable(top / path, PermissionError(13, "Permission denied"))
    return _Entry(path, info.st_size, bool(info.st_mode & stat.S_IXUSR))


def _names_of(item: os.DirEntry[str], path: str) -> tuple[str, ...]:
    """Return the forms of an entry's path that are compared with a pattern. Unlike in git, `data/` also matches a link
    to a folder.
    """
    if item.is_dir(follow_symlinks=False):
        return (f"{path}/",)
    return (path, f"{path}/") if item.is_symlink() and os.path.isdir(item.path) else (path,)


def _link(top: Path, path: str, ignored: Callable[[str], bool]) -> _Entry | None:
    """Return the entry to copy for a link. Return None if the link is dangling, or if it leads to a folder that is
    not copied.
    """
    source = top / path
    try:
        target = source.resolve(strict=True)
    except (OSError, RuntimeError):
        return None  # a dangling link or a loop, such as an editor's lock file
    if target.is_relative_to(top) and not _left_out(target.relative_to(top), ignored, target.is_dir()):
        return _Entry(path, link=os.path.relpath(target, source.parent.resolve()))
    if not target.is_file():
        return None
    if why := why_never_shipped(target):
        raise UsageError(f"{source} is a link, and {why}", "list the link in .orchignore, or remove it")
    return _file(top, path) if target.is_relative_to(top) else replace(_file(top, path), outside=str(target))


def _left_out(path: Path, ignored: Callable[[str], bool], is_folder: bool) -> bool:
    parts = path.parts
    parents = ("/".join(parts[:i]) + "/" for i in range(1, len(parts)))
    return any(map(ignored, parents)) or bool(parts and ignored(path.as_posix() + ("/" if is_folder else "")))


def _too_large(code_dir: Path, entries: list[_Entry], total: int, max_size: int, ignore_file: str) -> UsageError:
    sizes: dict[str, int] = {}
    for entry in entries:
        top, slash, _ = entry.path.partition("/")
        sizes[top + slash] = sizes.get(top + slash, 0) + entry.size
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
    listed = ", ".join(f"{name} ({size(count)})" for name, count in largest)
    hint = f"list large files in {code_dir / ignore_file} to leave them out, or raise `code.max_size` in the job"
    message = f"{code_dir}: the code folder is {size(total)}, more than the {size(max_size)} allowed"
    return UsageError(f"{message}; largest: {listed}", hint)


def _copy_all(entries: list[_Entry], code_dir: Path, destination: Path) -> tuple[str, dict[str, tuple[str, str]]]:
    """Copy all entries. Return (the hash of the whole copy, a mapping of each path to its kind and hash)."""
    whole, listing = hashlib.sha256(), {}
    try:
        destination.mkdir(parents=True, exist_ok=True)
        if any(destination.iterdir()):
            raise UsageError(f"{destination}: the folder for the snapshot is not empty")
    except OSError as error:
        raise UsageError(f"{destination}: the snapshot can't be written: {error.strerror}") from None
    for entry in entries:
        digest = _copy(entry, code_dir / entry.path, destination / entry.path)
        kind = "d" if entry.is_folder else "l" if entry.link is not None else "x" if entry.executable else "f"
        listing[entry.path] = (kind, digest)
        whole.update(b"%s %s\0%s\0" % (kind.encode(), os.fsencode(entry.path), digest.encode()))
    return whole.hexdigest(), listing


def _copy(entry: _Entry, source: Path, target: Path) -> str:
    try:
        if entry.is_folder:
            target.mkdir()
            return ""
        if entry.link is not None:
            target.symlink_to(entry.link)
            return hashlib.sha256(os.fsencode(entry.link)).hexdigest()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        digest = hashlib.sha256()
        with source.open("rb") as reading, os.fdopen(os.open(target, flags, 0o600), "wb") as writing:
            while chunk := reading.read(_CHUNK):
                digest.update(chunk)
                writing.write(chunk)
            if entry.executable:
                os.fchmod(writing.fileno(), 0o700)
    except OSError as error:
        where = error.filename or source
        raise UsageError(f"{where} can't be copied into the snapshot: {error.strerror}") from None
    return digest.hexdigest()


def git_state(folder: Path) -> Git:
    """Return this folder's git commit and its uncommitted changes; empty if git is missing or the folder is not in a
    repository.

    Submodules are not inspected, because their configuration can name programs to run. If a submodule is at another
    commit than recorded, that counts as a change.
    """
    options = ("--porcelain=v2", "--branch", "-z", "--untracked-files=normal", "--ignore-submodules=dirty")
    harmless = _without_filters(folder)
    status = _git(folder, *harmless, "status", *options, "--", ".") if harmless is not None else None
    if harmless is None or status is None:
        return Git()
    fields = iter(os.fsdecode(status).split("\0"))
    commit: str | None = None
    changed = False
    untracked: list[str] = []
    for line in fields:
        if line.startswith("# branch.oid "):
            commit = None if "(initial)" in line else line.split()[2]
        elif line.startswith("? "):
            untracked.append(line[2:])
        elif line and not line.startswith("#"):
            changed = True
            if line.startswith("2 "):
                next(fields, "")  # the old path follows a rename
    diff: str | None = None
    if changed and commit:
        options = ("--no-ext-diff", "--no-textconv", "--binary", "--no-color", "--ignore-submodules=dirty")
        patch = _git(folder, *harmless, "diff", "HEAD", *options, "--", ".")
        diff = hashlib.sha256(patch).hexdigest() if patch is not None else None
    return Git(commit, changed or bool(untracked), diff, tuple(sorted(untracked)[:_MAX_UNTRACKED]))


def _without_filters(folder: Path) -> list[str] | None:
    """Return git options that disable the filter programs in the repository's own configuration.

    The filters in the user's own configuration (git-lfs) stay enabled. Return None if the filters can't be listed
    or disabled.
    """
    listing = ("--includes", "--null", "--list")
    found = _git(folder, "config", "--local", *listing)
    if found is not None and b"\0extensions.worktreeconfig\n" in b"\0" + found:
        more = _git(folder, "config", "--worktree", *listing)
        found = found + more if more is not None else None
    if found is None:
        return None
    keys = [os.fsdecode(entry.partition(b"\n")[0]) for entry in found.split(b"\0")]
    names = sorted({key.rpartition(".")[0] for key in keys if key.startswith("filter.")})
    if any("=" in name for name in names):  # `-c` would split the name at the `=`
        return None
    fields = ("clean=", "smudge=", "process=", "required=false")
    return [word for name in names for field in fields for word in ("-c", f"{name}.{field}")]


def _git(folder: Path, *args: str) -> bytes | None:
    """Return the output of a git command, or None if it failed. git does not prompt, lock, fetch, or run other
    programs.
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "none", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [*_GIT, *args], cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_GIT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
