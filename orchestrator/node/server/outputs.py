"""Lists the files that a run's program has written on this machine. Symbolic links are never followed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Callable

from orchestrator.node.server.request import Answer, Request, at_user
from orchestrator.protocol.checkpoints import checkpoint_dir
from orchestrator.protocol.code_baseline import Baseline, read_baseline
from orchestrator.protocol.layout import container_view, is_own_file, is_run_folder, output_folder
from orchestrator.protocol.outputs import (
    ABOVE,
    ABOVE_IN_CONTAINER,
    BESIDE,
    CHECKPOINTS,
    CODE,
    IN_CONTAINER,
    OUTPUTS,
    Entry,
    Matcher,
    OutputRules,
)

# -- the code before the run


def baseline(code_dir: str) -> Baseline:
    """Return the size and time of each file of the code. This is called before any rank is started.

    If a link leads out of the folder, the size and time of its target are returned, because a script may write through
    the link.
    """
    walk = _Walk(code_dir)
    found = {path: [info.st_size, info.st_mtime_ns] for path, info in walk.files("")}
    return {**found, **{path: facts for path in walk.passed_over if (facts := _target(f"{code_dir}/{path}"))}}


def _target(path: str) -> list[int]:
    try:
        info = os.stat(path)
    except OSError:
        return []
    return [info.st_size, info.st_mtime_ns]


# -- the files after the run


@dataclass
class Found:
    """The outputs of a run on this machine. `passed_over` lists links and special files, which are not copied."""

    roots: dict[str, str]  # the searched folders, by their names in protocol.outputs
    files: list[Entry] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # (root, path), of files and whole folders


def find(run_dir: str, code_dir: str, checkpoints: str, rules: OutputRules, *, here: bool = False) -> Found:
    """Return the files that the run's program has written. They do not include orch's own files and unchanged code.

    Orch's own checkpoints are not outputs. Two folders may hold files of other runs: a checkpoint folder outside of the
    run's folder, and the parent of the run's folder. In these folders, only files that are newer than the run are
    outputs. `here` is whether the run was submitted on this machine.
    """
    before, made = read_baseline(code_dir)
    known = {CODE: code_dir, OUTPUTS: output_folder(run_dir)}
    found = Found(dict(known))
    _add(found, CODE, _Walk(code_dir, Matcher(rules), checkpoints, run_dir), before)
    if os.path.islink(known[OUTPUTS]):  # orch created a folder at this path, so a link was put there by the program
        found.passed_over.append(known[OUTPUTS])
    else:
        _add(found, OUTPUTS, _Walk(known[OUTPUTS], None, checkpoints, run_dir), {})
    if checkpoints and not any(
        _is_within(checkpoints, each) or _is_within(each, checkpoints) for each in known.values()
    ):
        known[CHECKPOINTS] = found.roots[CHECKPOINTS] = checkpoints
        since = 0 if _is_within(checkpoints, run_dir) else made
        _add(found, CHECKPOINTS, _Walk(checkpoints, None, checkpoints, run_dir), {}, since)
    for root, folder, is_orchs in _around(run_dir, made, here=here):
        # Orch created a folder at this path, so a link was put there by the program.
        if root in (IN_CONTAINER, ABOVE_IN_CONTAINER) and os.path.islink(folder):
            found.passed_over.append(folder)
            continue
        skips = _skipping(folder, [run_dir, *known.values()] if root == ABOVE else [*known.values()], is_orchs)
        found.roots[root] = folder
        _add(found, root, _Walk(folder, Matcher(rules), checkpoints, run_dir, skips), {}, made if root == ABOVE else 0)
    return found


def _around(run_dir: str, made: int, *, here: bool) -> Iterator[tuple[str, str, Callable[[str], bool]]]:
    """Yield (name, path, test for orch's own files) for each folder beside or above the working folder in which a
    program may have written files. Containers have separate folders for this.
    """
    above, run_id = os.path.split(run_dir)
    view = container_view(run_dir)

    def is_own(path: str) -> bool:
        return is_own_file(path, here=here)

    yield BESIDE, run_dir, is_own
    if made:  # without the time of the run's beginning, nothing shows which files are newer
        yield ABOVE, above, lambda path: is_run_folder(path.partition("/")[0])
    if os.path.isdir(view):
        if not os.path.islink(view):
            yield IN_CONTAINER, f"{view}/{run_id}", is_own
        yield ABOVE_IN_CONTAINER, view, lambda path: path == run_id or _is_mounted_from(above, path)


def _is_mounted_from(above: str, path: str) -> bool:
    """Return whether a path in a container's view may be the empty mount point for another run's folder. Such a mount
    point is not an output.

    A program may also have created a folder with the name of a run. So this is True only if a run folder of that name
    exists.
    """
    first = path.partition("/")[0]
    return is_run_folder(first) and os.path.lexists(f"{above}/{first}")


def _skipping(top: str, folders: Collection[str], is_orchs: Callable[[str], bool]) -> Callable[[str], bool]:
    """Return a test for paths below `top` that must be skipped: orch's own files, and folders that are searched
    separately.
    """
    return lambda path: f"{top}/{path}" in folders or is_orchs(path)


def _is_within(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder}/")


def _add(found: Found, root: str, walk: _Walk, before: Baseline, since: int = 0) -> None:
    for path, info in walk.files(""):
        if before.get(path) == [info.st_size, info.st_mtime_ns] or info.st_mtime_ns < since:
            continue
        is_readable = info.st_uid == os.geteuid() and info.st_mode & stat.S_IRUSR
        if is_readable or os.access(f"{walk.top}/{path}", os.R_OK):
            executable = bool(info.st_mode & stat.S_IXUSR)
            found.files.append(Entry(root, path, info.st_size, info.st_mtime_ns, executable))
        else:
            found.unreadable.append((root, path))
    passed_over = [(path, place) for path in walk.passed_over if _is_newer(place := f"{walk.top}/{path}", since)]
    found.passed_over += [place for path, place in passed_over if path not in before or before[path] != _target(place)]
    found.unreadable += [(root, path) for path in walk.unreadable if _is_newer(f"{walk.top}/{path}", since)]


def _is_newer(path: str, since: int) -> bool:
    """Return whether a link or folder was changed after `since`, or True if `since` is 0. Several runs may share the
    parent folder, and an older entry belongs to another run.
    """
    try:
        return not since or os.lstat(path).st_mtime_ns >= since
    except OSError:
        return True


class _Walk:
    """A recursive search of a folder for files that the matcher accepts. It also collects entries that can't be copied.

    Without a matcher, all files are accepted. `skips` returns whether a path is left out before the matcher is used.
    `run_dir` is the run's folder. A link may lead into this folder, because all of it is searched.
    """

    def __init__(
        self,
        top: str,
        matcher: Matcher | None = None,
        checkpoints: str = "",
        run_dir: str = "",
        skips: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.top, self.matcher, self.checkpoints, self.run_dir, self.skips = top, matcher, checkpoints, run_dir, skips
        self.passed_over: list[str] = []
        self.unreadable: list[str] = []

    def files(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the path and the stat result of each file below a folder. `folder` is "" or ends with a slash."""
        try:
            with os.scandir(f"{self.top}/{folder}") as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:  # the folder is gone, or never existed
            return
        except OSError:
            self.unreadable.append(folder.rstrip("/"))
            return
        if folder and self.matcher is not None and any(entry.name == "pyvenv.cfg" for entry in found):
            return  # a virtual environment
        for entry in found:
            path = f"{folder}{entry.name}"
            if self.skips(path):
                continue
            try:
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError:
                self.unreadable.append(path)
                continue
            if stat.S_ISDIR(info.st_mode):
                if (self.matcher is None or self.matcher.enters(path)) and not self._is_own(folder, entry.name):
                    yield from self.files(f"{path}/")
            elif self.matcher is None or self.matcher.takes(path):
                if stat.S_ISREG(info.st_mode):
                    yield path, info
                else:
                    self._pass_over(path, folder)

    def _pass_over(self, path: str, folder: str) -> None:
        """Record an entry that can't be copied: a special file, or a link whose target is outside the searched folders.

        If a link's target is inside these folders, the target itself is listed as an output, so the link is left out.
        """
        try:
            target = os.readlink(f"{self.top}/{path}")
        except OSError:
            target = "/"  # not a link, but a socket, a pipe or a device
        place = os.path.normpath(f"{self.top}/{folder}/{target}" if target[0] != "/" else target)
        if not _is_within(place, self.top) and not (self.run_dir and _is_within(place, self.run_dir)):
            self.passed_over.append(path)

    def _is_own(self, folder: str, name: str) -> bool:
        """Return whether an entry is a checkpoint in orch's format, complete or not. Such checkpoints are copied
        separately.
        """
        place = f"{self.top}/{folder}".rstrip("/")
        if place != self.checkpoints.rstrip("/"):
            return False
        committed = checkpoint_dir.step_of(name) is not None and checkpoint_dir.is_committed(f"{place}/{name}")
        return committed or checkpoint_dir.leftover_of(name) is not None


# -- the request


def list_outputs(request: Request, _: bytes) -> Answer:
    """Return the outputs of a run on this machine (see `find`). The list of files is the answer's binary part."""
    run_dir, code_dir = at_user(request["run_dir"]), at_user(request["code_dir"])
    found = find(run_dir, code_dir, at_user(request["checkpoints"]), OutputRules.from_json(request["rules"]))
    roots = {name: folder for name, folder in found.roots.items() if os.path.isdir(folder)}
    values = {"roots": roots, "passed_over": found.passed_over, "unreadable": found.unreadable}
    return values, json.dumps(found.files).encode()
