"""The node archive: the same bytes every time, nothing that a node must not have, and it runs alone."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

from orchestrator.transport.node_archive import node_archive

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
    ours = {path for folder in ("node", "training") for path in (PACKAGE / folder).rglob("*.py")}
    ours |= {PACKAGE / "__init__.py", PACKAGE / "version.py", *(PACKAGE / "protocol").rglob("*.py")}
    assert names == {"__main__.py", *(f"orchestrator/{path.relative_to(PACKAGE)}" for path in ours)}


def test_it_runs_with_nothing_but_the_standard_library(tmp_path: Path) -> None:
    path = tmp_path / "node.pyz"
    path.write_bytes(node_archive())
    bare = [sys.executable, "-I", "-S"]
    done = subprocess.run([*bare, path], capture_output=True, text=True, timeout=30, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")
    loads = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "import orchestrator.node.agent.agent, orchestrator.node.launcher.launcher"
    )
    done = subprocess.run([*bare, "-c", loads, path], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
