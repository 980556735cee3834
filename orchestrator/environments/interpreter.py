"""A node's interpreter, as it has told of itself: which wheels it takes, and what people call it. Pure."""

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
OLDEST_GLIBC: Final = 5  # of glibc 2
_LIBC: Final = re.compile(r"(glibc|musl) (\d)\.(\d{1,3})\b")
_VERSION: Final = re.compile(r"3\.\d{1,2}\.\d{1,2}[+a-z0-9]{0,12}")
_MARKERS: Final = ("implementation_name", "os_name", "platform_machine", "python_full_version", "sys_platform")
_MOVING: Final = ("platform_release", "platform_version")  # the kernel's: no other wheels after an update


@dataclass(frozen=True)
class Interpreter:
    """The interpreter that an environment is installed for."""

    base: str  # absolute, and no shim
    version: str
    platform: str  # as sysconfig calls it: linux-x86_64
    libc: str  # "glibc 2.36", "musl 1.2.4"
    free_threaded: bool
    markers: Mapping[str, str]
    paths: tuple[str, ...] = ()  # of the packages that stay visible
    packages: tuple[tuple[str, str], ...] = ()  # and what these are

    @staticmethod
    def of(found: Mapping[str, Any]) -> Interpreter:
        """Return the interpreter of a node's answer; ValueError for one that is none."""
        if not _VERSION.fullmatch(found["version"]) or not set(_MARKERS) <= set(found["markers"]):
            raise ValueError(f"{found['version'][:40]!r} is not a version of Python")
        names = ("base", "version", "platform", "libc", "free_threaded", "markers")
        return Interpreter(
            **{name: found[name] for name in names},
            paths=tuple(found["paths"]), packages=tuple(sorted(found["packages"].items())),
        )  # fmt: skip

    @property
    def key(self) -> str:
        """Return what tells it from others for which other wheels may be chosen."""
        markers = {name: value for name, value in self.markers.items() if name not in _MOVING}
        parts = [self.version, self.platform, self.libc, self.free_threaded, markers, self.packages]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def words(self) -> str:
        """Return what people call it."""
        return f"Python {self.version}, {self.platform}, {self.libc or 'its libc unknown'}"

    @property
    def minor(self) -> tuple[int, int]:
        """Return its version in two numbers."""
        first, second = self.version.split(".")[:2]
        return int(first), int(second)

    def environment(self) -> Environment:
        """Return what markers are held against."""
        from typing import cast  # noqa: PLC0415 (next to its only use)

        return cast("Environment", dict(self.markers))

    def tags(self) -> tuple[Tag, ...]:
        """Return the tags of the wheels that it takes, the best first."""
        from packaging import tags  # noqa: PLC0415 (only a lock needs it)

        platforms = list(_platforms(self.platform, self.libc))
        digits = f"cp{self.minor[0]}{self.minor[1]}"
        threads = "t" if self.free_threaded else ""
        if self.markers.get("implementation_name") == "cpython":
            own = tags.cpython_tags(self.minor, [f"{digits}{threads}"], platforms)
            return (*own, *tags.compatible_tags(self.minor, digits, platforms))
        return tuple(tags.compatible_tags(self.minor, None, platforms))


def _platforms(platform: str, libc: str) -> Iterator[str]:
    """Yield a machine's platform tags, from those that ask most of it to those that ask least."""
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
    """Return a libc's kind and version, of its words; None where they are none."""
    found = _LIBC.match(words)
    return (found[1], (int(found[2]), int(found[3]))) if found is not None else None
