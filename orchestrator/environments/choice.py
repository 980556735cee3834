"""Chooses, for each package in a lock, the file that is installed for a node's interpreter.

This module has no side effects.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.environments.interpreter import Interpreter
from orchestrator.environments.lock import Lock

if TYPE_CHECKING:
    from packaging.pylock import Package, Pylock

MOST_NAMED: Final = 5


class NoChoiceError(Exception):
    """The lock has no usable file for this interpreter. The message names the affected packages."""


@dataclass(frozen=True)
class Choice:
    """A package, and the file from which it is installed. The URL is empty if this machine built that file."""

    name: str
    version: str
    file: str
    sha256: str
    url: str = ""
    is_sdist: bool = False

    @property
    def requirement(self) -> str:
        """Return the package's line in a requirements file."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def choose(
    lock: Lock, pylock: str, interpreter: Interpreter, allowed: Mapping[str, frozenset[str]]
) -> tuple[Choice, ...]:
    """Return the files to install for the interpreter, sorted by package. Raises NoChoiceError if a package has no
    usable file.

    `allowed` maps each package to the sha256s that a requirements file lists for it, or to an empty set if it lists
    none. A package is left out if the interpreter can already import it in the lock's version.
    """
    from packaging.pylock import Pylock, PylockSelectError, PylockValidationError

    try:
        document = _restricted(_beside(Pylock.from_dict(tomllib.loads(pylock)), interpreter), allowed)
        if lacking := list(_without_file(document, interpreter, lock)):
            more = f"; and {len(lacking) - MOST_NAMED} more" if len(lacking) > MOST_NAMED else ""
            raise NoChoiceError("; ".join(lacking[:MOST_NAMED]) + more)
        groups = None if lock.groups is None else [*(document.default_groups or ()), *lock.groups]
        chosen = list(
            document.select(
                environment=interpreter.environment(), tags=interpreter.tags(), extras=lock.extras,
                dependency_groups=groups,
            )
        )  # fmt: skip
    except (PylockSelectError, PylockValidationError, ValueError) as error:
        raise NoChoiceError(str(error)) from error
    found = [_choice(package, source, interpreter, lock.folder) for package, source in chosen]
    return tuple(sorted(found, key=lambda each: each.name))


def _beside(document: Pylock, interpreter: Interpreter) -> Pylock:
    """Return the lock without the packages that the interpreter can already import in the lock's version."""
    from packaging.utils import canonicalize_name

    there = {canonicalize_name(name): _release(version) for name, version in interpreter.packages}
    left = [each for each in document.packages if each.name not in there or there[each.name] != _release(each.version)]
    return replace(document, packages=left)


def _release(version: object) -> str:
    """Return a version without its local suffix. For example, a cluster's 2.5.0+cu124.site becomes 2.5.0."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(str(version)).public
    except InvalidVersion:
        return str(version)


def _restricted(document: Pylock, allowed: Mapping[str, frozenset[str]]) -> Pylock:
    """Return the lock with only the files whose hashes are allowed. Raises NoChoiceError if a package has no allowed
    file.

    This is needed because uv, when it resolves a requirements file, does not check its result against the hashes in
    that file.
    """
    if not any(allowed.values()):
        return document
    packages = []
    for package in document.packages:
        hashes = allowed.get(package.name, frozenset())
        if not hashes:
            raise NoChoiceError(f"{package.name} {package.version} is needed, but the lock has no hash for it")
        wheels = [wheel for wheel in package.wheels or () if wheel.hashes.get("sha256") in hashes]
        sdist = package.sdist if package.sdist and package.sdist.hashes.get("sha256") in hashes else None
        archive = package.archive if package.archive and package.archive.hashes.get("sha256") in hashes else None
        if not wheels and sdist is None and archive is None:
            raise NoChoiceError(f"{package.name} {package.version}: none of its files has a hash that is in the lock")
        packages.append(replace(package, wheels=wheels or None, sdist=sdist, archive=archive))
    return replace(document, packages=packages)


def _without_file(document: Pylock, interpreter: Interpreter, lock: Lock) -> Iterator[str]:
    """Yield an error message for each needed package that has no file for this interpreter. The message names files
    of the package for other interpreters.
    """
    tags = set(interpreter.tags())
    wants: dict[str, str | frozenset[str]] = {
        **interpreter.markers,
        "extras": frozenset(lock.extras),
        "dependency_groups": frozenset((*(document.default_groups or ()), *(lock.groups or ()))),
    }
    for package in document.packages:
        if package.marker is not None and not package.marker.evaluate(wants, context="lock_file"):
            continue
        if (
            package.wheels
            and package.sdist is None
            and not any(_fits(wheel.filename, tags) for wheel in package.wheels)
        ):
            names = ", ".join(wheel.filename for wheel in package.wheels[:2])
            more = f", and {len(package.wheels) - 2} others" if len(package.wheels) > 2 else ""
            yield f"{package.name} {package.version} has no wheel for this Python and platform, only {names}{more}"


def _fits(name: str, tags: set[Any]) -> bool:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        return bool(parse_wheel_filename(name)[3] & tags)
    except InvalidWheelFilename:
        return False


def _choice(package: Package, source: Any, interpreter: Interpreter, folder: str) -> Choice:
    from packaging.pylock import PackageArchive, PackageSdist, PackageWheel

    version = str(package.version or "")
    if not isinstance(source, PackageWheel | PackageSdist | PackageArchive):
        raise NoChoiceError(
            f"{package.name} comes from a folder or a repository, which has no hash; lock a wheel of it instead"
        )
    url = source.url or (Path(folder) / (source.path or "")).as_uri()
    if (sha256 := source.hashes.get("sha256")) is None:
        raise NoChoiceError(f"{package.name}: the lock has no sha256 of {url}")
    file = url.partition("#")[0].partition("?")[0].rpartition("/")[2]
    if not isinstance(source, PackageArchive):
        file = source.filename
    is_sdist = not file.endswith(".whl")
    if not is_sdist and not _fits(file, set(interpreter.tags())):
        raise NoChoiceError(f"{package.name} {version} has no wheel for this Python and platform, only {file}")
    return Choice(package.name, version, file, sha256, url, is_sdist=is_sdist)
