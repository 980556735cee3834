"""Builds the node archive (node.pyz): one zip file with agent, launcher and training library, for nodes that only have
python3.

It has the source of each module, and the bytecode of the Python version that made the archive. A node's python3 of the
same version uses the bytecode, because compiling takes half the time of every import. Other versions use the source.
"""

from __future__ import annotations

import io
import marshal
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, find_spec, source_hash
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Final

from orchestrator.node.system import kept

if TYPE_CHECKING:  # the import is slow, and a cached archive does not need it
    from importlib.resources.abc import Traversable

_MAIN = b"import sys\nfrom orchestrator.node.__main__ import main\nsys.exit(main())\n"
_OF_SUBMITIT: Final = ("submitit", "cloudpickle", "typing_extensions")
_PARTS: Final = ("protocol", "outcome", "node", "training")
_ROOT: Final = ("__init__.py", "version.py")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources, and the same Python, give the same bytes
_UNCHECKED_HASH = (1).to_bytes(4, "little")  # PEP 552: this .pyc has a hash, which is not checked
_WITHOUT_REFERENCES = 2  # marshal's format whose bytes do not depend on how often an object is used elsewhere


@cache
def node_archive() -> bytes:
    """Return the archive's bytes, which depend only on the sources and the version of Python."""
    root = Path(__file__).parents[1]
    members = {"__main__.py": _MAIN}
    for path in _modules(root):
        name, source = f"orchestrator/{path.relative_to(root)}", path.read_bytes()
        members[name] = source
        if (bytecode := _bytecode(path, name, source)) is not None:
            members[f"{name}c"] = bytecode
    return _zipped(members)


def _modules(root: Path) -> Iterator[Path]:
    yield from (root / name for name in _ROOT)
    for package in _PARTS:
        yield from (root / package).rglob("*.py")


def _bytecode(path: Path, name: str, source: bytes) -> bytes | None:
    """Return a module as the content of a .pyc file, under its name in the archive; None if it can't be compiled."""
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)  # from Python's own cache, if it is there
    assert code is not None, "only a namespace package has none"
    try:
        body = marshal.dumps(_of(code, name), _WITHOUT_REFERENCES)
    except ValueError:  # a constant that this format doesn't know: a slice, from Python 3.14 on
        return None
    return MAGIC_NUMBER + _UNCHECKED_HASH + source_hash(source) + body


def _of(code: CodeType, name: str) -> CodeType:
    """Return the code object with the archive's file name, because a path of this machine would be useless in a node's
    traceback.
    """
    constants = tuple(_of(each, name) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename=f"node.pyz/{name}", co_consts=constants)


def kept_archive(state: Path) -> bytes:
    """Return `node_archive()` from the cache in the state folder. The cache is rebuilt if a source has changed."""
    package = Path(__file__).parents[1]
    of_root = [(name, (package / name).stat().st_mtime_ns) for name in _ROOT]
    return _kept(state / "cache" / "node.pyz", node_archive, of_root, kept.sources(str(package), _PARTS))


def kept_submitit(state: Path) -> bytes:
    """Return `submitit_archive()` from the cache in the state folder. The cache is rebuilt if a source has changed."""
    found = [_installed(name) for name in _OF_SUBMITIT]
    parts = [str(path if path.name != "__init__.py" else path.parent) for path in found]
    return _kept(state / "cache" / "submitit.pyz", submitit_archive, kept.sources("", parts))


def _kept(path: Path, make: Callable[[], bytes], *decided_by: object) -> bytes:
    key = kept.key_of(MAGIC_NUMBER.hex(), *decided_by)
    if (found := kept.take(str(path), key)) is None:
        found = make()
        kept.keep(str(path), key, found)
    return found


@cache
def submitit_archive() -> bytes:
    """Return the part of submitit that runs in each task, as one program with all its imports, for nodes without
    submitit.
    """
    members = {"__main__.py": b"from submitit.core.submission import submitit_main\n\nsubmitit_main()\n"}
    for path in map(_installed, _OF_SUBMITIT):
        is_package = path.name == "__init__.py"
        members.update(_sources(path.parent, path.parent.name) if is_package else {path.name: path.read_bytes()})
    return _zipped({path: data for path, data in members.items() if not path.rpartition("/")[2].startswith("test_")})


@cache
def cloudpickle_archive() -> bytes:
    """Return cloudpickle as one zip file, for machines that must read a pickled function and lack cloudpickle."""
    return _zipped(_sources(_installed("cloudpickle").parent, "cloudpickle"))


def _installed(name: str) -> Path:
    spec = find_spec(name)  # importing submitit would take 60 ms
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module named {name!r}")
    return Path(spec.origin)


def _zipped(members: Mapping[str, bytes]) -> bytes:
    import zipfile

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
