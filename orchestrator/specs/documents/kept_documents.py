"""Caches validated documents, so that another submission of the same files imports neither pydantic nor ruamel.

The cache key covers the files, the options and orch's own source. Each submission also checks this machine and the code
folder. If the check finds a problem, the loader reads the files again and reports the problem.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from orchestrator.errors import OrchError
from orchestrator.node.system import kept
from orchestrator.protocol.json_text import parse_json
from orchestrator.protocol.reading import read_regular
from orchestrator.specs.allocation import allocation_key
from orchestrator.specs.documents.loaded import Loaded, code_dir_of
from orchestrator.specs.documents.paths import both_paths
from orchestrator.specs.here import check_here
from orchestrator.specs.job import Job
from orchestrator.specs.kinds import OWN, model_of
from orchestrator.specs.spec import KNOWN, Spec, place_of

if TYPE_CHECKING:  # these are the slow imports that this module avoids
    from orchestrator.specs.documents.yaml_source import Document
    from orchestrator.specs.profiles import AnyProfile

FOLDER: Final = "cache/documents"
SLOTS: Final = 64  # files in the cache; a new entry overwrites an old one in its slot, so their number is bounded
PACKAGE: Final = str(Path(__file__).parents[2])
SOURCES: Final = (
    "specs", "protocol", "errors.py", "node/system/host.py", "node/system/kernel_files.py",
    "runs/files/code_snapshot.py", "runs/files/ignore_rules.py", "runs/redaction.py", "transport/address.py",
)  # fmt: skip
"""The parts of orch's source code that decide how a document is read."""


class _Asked(NamedTuple):
    """The files of a job and a profile, and the options that override their fields."""

    job_file: Path
    profile_file: Path
    sets: tuple[str, ...]
    flags: Mapping[str, Any]

    def key(self) -> str:
        """Return a hash of everything that decides the content of the documents.

        Raises OSError if a file can't be read.
        """
        read = [hashlib.sha256(_bytes_of(path)).hexdigest() for path in (self.job_file, self.profile_file)]
        # error messages name places relative to that folder; a profile may name the allocation
        ours = [sys.version, kept.sources(PACKAGE, SOURCES), str(Path.cwd()), allocation_key()]
        return kept.key_of(*ours, str(self.job_file), str(self.profile_file), read, self.sets, dict(self.flags))


def _bytes_of(path: Path) -> bytes:
    """Return the content of a file.

    Raises OSError if the file can't be a job or profile, because it is a pipe, a device or too large.
    """
    return read_regular(os.path.realpath(path), kept.MOST_BYTES)


def load(
    root: Path,
    job: str | Document,
    profile: str,
    *,
    sets: tuple[str, ...],
    flags: Mapping[str, Any],
    allow_code_dir: bool,
) -> Loaded:
    """Load the job and the profile. If nothing has changed, they come from the cache in the state folder `root`;
    otherwise from the loader.
    """
    asked, key = None, ""
    if isinstance(job, str):
        with contextlib.suppress(OrchError, OSError, ValueError, TypeError):  # the loader reports the error
            asked = _Asked(*both_paths(job, profile, Path.cwd()), sets, flags)
            key = asked.key()
            if (found := _read(_path(root, key), key, asked, allow_code_dir=allow_code_dir)) is not None:
                return found
    from orchestrator.specs.documents.loader import load as load_files

    loaded = load_files(job, profile, sets=sets, flags=flags, allow_code_dir=allow_code_dir)
    is_own = loaded.profile.kind in OWN  # the key does not cover the packages that add kinds
    if key and asked is not None and is_own and root.is_dir():
        # if the cache can't be written, the next submit reads the files again
        with contextlib.suppress(OSError, ValueError, TypeError):
            if asked.key() == key:  # nobody changed the files meanwhile
                _write(_path(root, key), key, loaded)
    return loaded


def _path(root: Path, key: str) -> str:
    return f"{root / FOLDER}/{int(key, 16) % SLOTS}.json"


def _read(path: str, key: str, asked: _Asked, *, allow_code_dir: bool) -> Loaded | None:
    """Return the cached documents; None if they are not cached, or if this machine or the code folder has a problem."""
    body = kept.take(path, key)
    if body is None:
        return None
    found = parse_json(body)
    model_of(OWN[found["kind"]])  # the import registers the classes of such a profile in KNOWN
    job, profile = cast("Job", _decoded(found["job"])), cast("AnyProfile", _decoded(found["profile"]))
    code_dir = code_dir_of(job, asked.job_file)
    if check_here(job, profile, code_dir, asked.job_file, allowed=allow_code_dir):
        return None  # the loader reports what is missing, with its place
    return Loaded(job, profile, asked.job_file, asked.profile_file, code_dir, tuple(found["notes"]))


def _write(path: str, key: str, loaded: Loaded) -> None:
    found = {
        "kind": loaded.profile.kind,
        "job": _encoded(loaded.job),
        "profile": _encoded(loaded.profile),
        "notes": loaded.notes,
    }
    kept.keep(path, key, json.dumps(found).encode())


def _encoded(value: Any) -> Any:
    """Return a document's value as JSON from which `_decoded` restores it.

    Tuples become lists. Mappings and parts of documents become objects. The key `mapping` or `spec` of an object shows
    which of the two it was.
    """
    if isinstance(value, Spec):
        return {"spec": place_of(type(value)), "given": {name: _encoded(each) for name, each in value.given().items()}}
    if isinstance(value, dict):
        return {"mapping": {name: _encoded(each) for name, each in value.items()}}
    if isinstance(value, tuple):
        return [_encoded(each) for each in value]
    if value is not None and not isinstance(value, str | int | float):
        raise TypeError(f"a value of type {type(value).__name__} can't be cached")
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_decoded, value))
    if not isinstance(value, dict):
        return value
    values = {name: _decoded(each) for name, each in value["mapping" if "mapping" in value else "given"].items()}
    return values if "mapping" in value else KNOWN[value["spec"]](**values)
