"""The node archive: one zip file that is agent, launcher and training library, for a node that has only python3."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.node.system import kept

if TYPE_CHECKING:  # an archive that is kept must not wait for what makes one
    from importlib.resources.abc import Traversable

_MAIN = b"import sys\nfrom orchestrator.node.__main__ import main\nsys.exit(main())\n"
_PARTS: Final = ("protocol", "node", "training")
_ROOT: Final = ("__init__.py", "version.py")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes


@cache
def node_archive() -> bytes:
    """Return the archive's bytes; they depend on nothing but the sources."""
    from importlib.resources import files  # noqa: PLC0415 (as above)

    root = files("orchestrator")
    members = {"__main__.py": _MAIN}
    for name in _ROOT:
        members[f"orchestrator/{name}"] = (root / name).read_bytes()
    for package in _PARTS:
        members.update(_sources(root / package, f"orchestrator/{package}"))
    return _zipped(members)


def kept_archive(state: Path) -> bytes:
    """Return the same bytes; they are kept in the state folder, and made anew where a source has changed."""
    package = Path(__file__).parents[1]
    of_root = [(name, (package / name).stat().st_mtime_ns) for name in _ROOT]
    path, key = str(state / "cache" / "node.pyz"), kept.key_of(of_root, kept.sources(str(package), _PARTS))
    if (found := kept.take(path, key)) is None:
        found = node_archive()
        kept.keep(path, key, found)
    return found


@cache
def submitit_archive() -> bytes:
    """Return submitit and its imports as one program, for an interpreter that has none: its side of a task."""
    members = {"__main__.py": b"from submitit.core.submission import submitit_main\n\nsubmitit_main()\n"}
    for name in ("submitit", "cloudpickle"):
        members.update(_sources(_installed(name).parent, name))
    members["typing_extensions.py"] = _installed("typing_extensions").read_bytes()
    return _zipped({path: data for path, data in members.items() if not path.rpartition("/")[2].startswith("test_")})


@cache
def cloudpickle_archive() -> bytes:
    """cloudpickle as one zip file: what reads a pickled function where it is not installed."""
    return _zipped(_sources(_installed("cloudpickle").parent, "cloudpickle"))


def _installed(name: str) -> Path:
    spec = find_spec(name)  # importing submitit would take 60 ms
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module named {name!r}")
    return Path(spec.origin)


def _zipped(members: Mapping[str, bytes]) -> bytes:
    import zipfile  # noqa: PLC0415 (as above)

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(members):
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), members[path], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _sources(folder: Traversable, prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            found.update(_sources(entry, f"{prefix}/{entry.name}"))
        elif entry.name.endswith(".py"):
            found[f"{prefix}/{entry.name}"] = entry.read_bytes()
    return found
