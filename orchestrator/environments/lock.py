"""Reads and checks the lock file of a job's Python environment, and converts it to the form that is recorded with
the run.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.environments.uv import UvError, run_uv
from orchestrator.errors import UsageError

if TYPE_CHECKING:  # commands that only read runs must not load pydantic
    from orchestrator.specs.python_environment import PythonEnvironment

MOST_BYTES: Final = 64 << 20
_OPTION: Final = re.compile(r"\s--?[a-z]")
_HASH: Final = re.compile(r"--hash[= ]+sha256:([0-9a-f]{64})")
_INCLUDES: Final = ("-r", "--requirement", "-c", "--constraint", "-e", "--editable")


@dataclass(frozen=True)
class Lock:
    """A lock file, with the groups and extras that the job selects from it.

    `text` is the file's unchanged text. `pylock` is the lock converted to pylock.toml; it is "" for a requirements
    file.
    """

    name: str
    text: str
    pylock: str
    folder: str  # the folder to which paths in the lock are relative
    python: str | None = None
    system_packages: str | None = None
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] | None = None  # None: the default groups of a pylock.toml

    def to_json(self) -> dict[str, Any]:
        """Return the lock as JSON types."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Lock:
        """Parse the lock that `to_json` wrote."""
        groups = data["groups"]
        return Lock(**{**data, "extras": tuple(data["extras"]), "groups": None if groups is None else tuple(groups)})


def read_lock(wanted: PythonEnvironment, code_dir: Path) -> Lock:
    """Read the lock that a job names. Raises UsageError if the file can't be read or is not a lock."""
    path = code_dir / wanted.lock
    if not path.resolve().is_relative_to(code_dir.resolve()):
        raise UsageError(
            f"{path}: the lock is outside the code folder {code_dir}",
            "set `code.dir` in the job to a folder that contains the lock",
        )
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{path} is too large for a lock file", "set `environment.lock` in the job to a lock file")
        text = path.read_text("utf-8")
    except OSError as error:
        raise UsageError(
            f"{path}: the lock can't be read: {error.strerror}",
            "environment.lock is relative to the code folder; `uv lock` makes a uv.lock",
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: the lock is not UTF-8 text", "create the lock again") from None
    lock = Lock(path.name, text, "", str(path.parent), wanted.python, wanted.system_packages)
    if path.name.endswith(".txt"):
        hashes_of(lock, str(path))
        return lock
    if path.name == "uv.lock":
        return replace(lock, pylock=_exported(wanted, path))
    _check_toml(text, path)
    return replace(lock, pylock=text, extras=wanted.extras, groups=wanted.groups or None)


def _exported(wanted: PythonEnvironment, path: Path) -> str:
    """Convert a uv.lock to pylock.toml. The project itself is left out, because its code is shipped anyway."""
    wants = [word for name in wanted.extras for word in ("--extra", name)]
    wants += [word for name in wanted.groups for word in ("--group", name)]
    try:
        return run_uv(
            "export", "--frozen", "--offline", "--format", "pylock.toml", "--no-emit-workspace", "--no-default-groups",
            "--no-header", "--no-annotate", "--python", sys.executable, *wants, cwd=path.parent,
        )  # fmt: skip
    except UvError as error:
        raise UsageError(
            f"{path}: uv can't read the lock:\n{error}", "create it again with `uv lock`, beside pyproject.toml"
        ) from None


def _check_toml(text: str, path: Path) -> None:
    from packaging.pylock import Pylock, PylockValidationError

    try:
        Pylock.from_dict(tomllib.loads(text))
    except (ValueError, PylockValidationError) as error:
        raise UsageError(
            f"{path} is not a valid pylock.toml: {error}", "uv export --format pylock.toml writes one"
        ) from None


def hashes_of(lock: Lock, path: str) -> dict[str, frozenset[str]]:
    """Return the sha256s that a requirements file lists for each package. A package without hashes has an empty set.

    Raises UsageError, which names the file `path`, if a line does not pin a version, because such a file is not a lock.
    """
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    hint = (
        "write a lock file from the requirements: uv pip compile requirements.in --generate-hashes -o requirements.txt"
    )
    found: dict[str, frozenset[str]] = {}
    for number, line in _lines(lock.text):
        if line.startswith(_INCLUDES):
            raise UsageError(
                f"{path}:{number}: '{line}' refers to another file or folder, but a lock must be a single file", hint
            )
        if line.startswith("-"):
            continue
        option = _OPTION.search(line)
        try:
            wanted = Requirement(line[: option.start()] if option else line)
        except InvalidRequirement as error:
            why = str(error).splitlines()[0]
            raise UsageError(
                f"{path}:{number}: '{line}' is not a requirement that can be locked: {why}", hint
            ) from None
        pins = [each for each in wanted.specifier if each.operator in ("==", "===") and "*" not in each.version]
        if wanted.url is None and not pins:
            raise UsageError(
                f"{path}:{number}: '{line}' does not pin one version (name==1.2.3), so the file is not a lock", hint
            )
        name = canonicalize_name(wanted.name)
        found[name] = found.get(name, frozenset()) | frozenset(_HASH.findall(line))
    return found


def _lines(text: str) -> list[tuple[int, str]]:
    """Return (number, text) for each logical line of a requirements file. Continued lines are joined, and comments
    are removed.
    """
    found, begun, held = [], 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"(^|\s)#.*", "", line).strip()
        begun = begun or number
        if bare.endswith("\\"):
            held += bare[:-1] + " "
            continue
        if whole := (held + bare).strip():
            found.append((begun, whole))
        begun, held = 0, ""
    return found
