"""The node archive: the same bytes every time, nothing that a node must not have, and it runs alone."""

from __future__ import annotations

import io
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.node.system import kept
from orchestrator.transport import node_archive as archives
from orchestrator.transport.node_archive import kept_archive, node_archive
from tests.patience import PATIENCE

PACKAGE = Path(__file__).parents[3] / "orchestrator"


def test_the_same_sources_give_the_same_bytes() -> None:
    first = node_archive()
    node_archive.cache_clear()
    assert node_archive() == first
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_it_holds_the_node_side_and_nothing_else() -> None:
    with zipfile.ZipFile(io.BytesIO(node_archive())) as archive:
        names = set(archive.namelist())
        assert archive.testzip() is None
        assert archive.read("orchestrator/protocol/task.py") == (PACKAGE / "protocol" / "task.py").read_bytes()
    ours = {path for folder in ("protocol", "outcome", "node", "training") for path in (PACKAGE / folder).rglob("*.py")}
    ours |= {PACKAGE / "__init__.py", PACKAGE / "version.py"}
    modules = {f"orchestrator/{path.relative_to(PACKAGE)}" for path in ours}
    assert names == {"__main__.py", *modules, *(f"{name}c" for name in modules)}


def test_its_bytecode_is_taken_by_the_same_python_and_its_source_by_any_other(tmp_path: Path) -> None:
    prints = "import sys; sys.path.insert(0, sys.argv[1]); import orchestrator.version as it; print(it.__file__)"
    whole, other = tmp_path / "whole.pyz", tmp_path / "other.pyz"
    whole.write_bytes(node_archive())
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(other, "w") as changed:
        for name in archive.namelist():
            data = archive.read(name)
            changed.writestr(name, b"\x00\x00\r\n" + data[4:] if name.endswith(".pyc") else data)
    found = [
        subprocess.run([sys.executable, "-I", "-S", "-c", prints, path], capture_output=True, text=True, check=True)
        for path in (whole, other)
    ]
    assert [done.stdout.strip() for done in found] == [
        f"{whole}/orchestrator/version.pyc", f"{other}/orchestrator/version.py"
    ]  # fmt: skip


def test_a_traceback_names_the_module_and_shows_its_line(tmp_path: Path) -> None:
    path = tmp_path / "node.pyz"
    path.write_bytes(node_archive())
    code = "import sys; sys.path.insert(0, sys.argv[1]); from orchestrator.protocol.task import NodeTask\n"
    code += "import traceback\ntry: NodeTask.from_json(3)\nexcept AttributeError: traceback.print_exc()"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, path], capture_output=True, text=True, check=False)
    assert 'File "node.pyz/orchestrator/protocol/task.py", line ' in done.stderr
    assert str(PACKAGE) not in done.stderr
    assert "in from_json\n    " in done.stderr


def test_it_runs_with_nothing_but_the_standard_library(tmp_path: Path) -> None:
    path = tmp_path / "node.pyz"
    path.write_bytes(node_archive())
    bare = [sys.executable, "-I", "-S"]
    done = subprocess.run([*bare, path], capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")
    loads = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "import orchestrator.node.agent.agent, orchestrator.node.launcher.launcher"
    )
    done = subprocess.run([*bare, "-c", loads, path], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_kept_until_a_source_changes_and_not_believed_where_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bytes] = []

    def archive() -> bytes:
        made.append(b"zip %d" % len(made))
        return made[-1]

    monkeypatch.setattr(archives, "node_archive", archive)
    assert [kept_archive(tmp_path), kept_archive(tmp_path)] == [b"zip 0", b"zip 0"]
    path = tmp_path / "cache" / "node.pyz"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent)] == [0o600, 0o700]
    path.write_bytes(path.read_bytes().replace(b"zip", b"rar"))
    assert kept_archive(tmp_path) == b"zip 1"
    monkeypatch.setattr(kept, "sources", lambda *_: [("node/agent/agent.py", 1, 1)])
    assert kept_archive(tmp_path) == b"zip 2"
    path.parent.chmod(0o777)
    assert kept_archive(tmp_path) == b"zip 3"
    assert b"zip 3" not in path.read_bytes()
