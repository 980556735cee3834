"""The node archive: one zip file that is agent, launcher and training library, for a node that has only python3."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

_MAIN = b"import sys\nfrom orchestrator.node.__main__ import main\nsys.exit(main())\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources give the same bytes


@cache
def node_archive() -> bytes:
    """The archive's bytes; they depend on nothing but the sources."""
    root = files("orchestrator")
    members = {"__main__.py": _MAIN}
    for name in ("__init__.py", "wire.py"):
        members[f"orchestrator/{name}"] = (root / name).read_bytes()
    for package in ("node", "training"):
        members.update(_sources(root / package, f"orchestrator/{package}"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(members):
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), members[path])
    return buffer.getvalue()


def _sources(folder: Traversable, prefix: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            found.update(_sources(entry, f"{prefix}/{entry.name}"))
        elif entry.name.endswith(".py"):
            found[f"{prefix}/{entry.name}"] = entry.read_bytes()
    return found
