"""The description of a node's interpreter, and the wheels that the interpreter accepts.

This module has no side effects.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from packaging.markers import Environment
    from packaging.tags import Tag

_LEGACY: Final = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
OLDEST_GLIBC: Final = 5  # the oldest minor version of glibc 2 for which wheels have tags
_LIBC: Final = re.compile(r"(glibc|musl) (\d)\.(\d{1,3})\b")
_VERSION: Final = re.compile(r"3\.\d{1,2}\.\d{1,2}[+a-z0-9]{0,12}")
_MARKERS: Final = ("implementation_name", "os_name", "platform_machine", "python_full_version", "sys_platform")
# These markers describe the kernel, whose updates must not change the choice of wheels.
_MOVING: Final = ("platform_release", "platform_version")


@dataclass(frozen=True)
class Interpreter:
    """A node's Python interpreter, for which an environment is installed: its version, its platform, its packages."""

    base: str  # absolute path of the real interpreter, not of a shim
    version: str
    platform: str  # in sysconfig's form, such as linux-x86_64
    libc: str  # "glibc 2.36", "musl 1.2.4"
    free_threaded: bool
    markers: Mapping[str, str]
    paths: tuple[str, ...] = ()  # folders of installed packages that the environment can import too
    packages: tuple[tuple[str, str], ...] = ()  # (name, version) of the packages in these folders

    @staticmethod
    def of(found: Mapping[str, Any]) -> Interpreter:
        """Build the description from a node's answer. Raises ValueError if the answer contains impossible values."""
        if not _VERSION.fullmatch(found["version"]) or not set(_MARKERS) <= set(found["markers"]):
            raise ValueError(f"{found['version'][:40]!r} is not a version of Python")
        names = ("base", "version", "platform", "libc", "free_threaded", "markers")
        return Interpreter(
            **{name: found[name] for name in names},
            paths=tuple(found["paths"]), packages=tuple(sorted(found["packages"].items())),
        )  # fmt: skip

    @property
    def key(self) -> str:
        """Return a hash of all facts that influence the choice of wheels."""
        markers = {name: value for name, value in self.markers.items() if name not in _MOVING}
        parts = [self.version, self.platform, self.libc, self.free_threaded, markers, self.packages]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def words(self) -> str:
        """Describe the interpreter for messages."""
        return f"Python {self.version}, {self.platform}, {self.libc or 'its libc unknown'}"

    @property
    def minor(self) -> tuple[int, int]:
        """Return the version as (major, minor)."""
        first, second = self.version.split(".")[:2]
        return int(first), int(second)

    def environment(self) -> Environment:
        """Return the environment markers, such as python_version, in the form of the library `packaging`."""
        from typing import cast

        return cast("Environment", dict(self.markers))

    def tags(self) -> tuple[Tag, ...]:
        """Return the tags of the wheels that the interpreter accepts, best first."""
        from packaging import tags

        platforms = list(_platforms(self.platform, self.libc))
        digits = f"cp{self.minor[0]}{self.minor[1]}"
        threads = "t" if self.free_threaded else ""
        if self.markers.get("implementation_name") == "cpython":
            own = tags.cpython_tags(self.minor, [f"{digits}{threads}"], platforms)
            return (*own, *tags.compatible_tags(self.minor, digits, platforms))
        return tuple(tags.compatible_tags(self.minor, None, platforms))


def _platforms(platform: str, libc: str) -> Iterator[str]:
    """Yield the platform tags of the wheels that a machine accepts. Tags that require a newer libc come first."""
    plain = re.sub(r"[^A-Za-z0-9]", "_", platform)
    arch = plain.removeprefix("linux_")
    found = libc_of(libc)
    if plain.startswith("linux_") and found is not None:
        kind, (major, minor) = found
        oldest = OLDEST_GLIBC if arch in ("x86_64", "i686") else 17
        for each in range(minor, (oldest if kind == "glibc" else 0) - 1, -1):
            yield f"{'many' if kind == 'glibc' else 'musl'}linux_{major}_{each}_{arch}"
            if kind == "glibc" and (major, each) in _LEGACY:
                yield f"{_LEGACY[major, each]}_{arch}"
    yield plain


def libc_of(words: str) -> tuple[str, tuple[int, int]] | None:
    """Return the kind and version of the libc in a text such as "glibc 2.36". Return None for any other text."""
    found = _LIBC.match(words)
    return (found[1], (int(found[2]), int(found[3]))) if found is not None else None
