"""A rank that misses a module is told which other interpreters there are, without starting any of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.node.launcher.rank import missing_module as subject
from orchestrator.node.launcher.rank.missing_module import missing_module
from orchestrator.outcome.rule import Seen
from orchestrator.outcome.rules import hint_of
from orchestrator.protocol.rank_reports import MissingModule
from tests.events import culprit


@pytest.fixture(autouse=True)
def _no_usual_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "usual_folders", list)


def interpreter(folder: Path, *files: str) -> str:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").touch(0o755)
    for file in ("a.py", *files):
        path = folder / "lib/python3.11/site-packages" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return f"{folder}/bin/python"


def test_interpreters_that_have_the_module_are_named_else_all(tmp_path: Path) -> None:
    active, has_it = interpreter(tmp_path / "a"), interpreter(tmp_path / "b", "timm/__init__.py")
    environ = {"VIRTUAL_ENV": f"{tmp_path}/a", "PATH": f"{tmp_path}/b/bin:{tmp_path}/b/bin:{sys.prefix}/bin:relative"}
    words = "ModuleNotFoundError: No module named 'timm.models'"
    assert missing_module(words, environ) == MissingModule("timm", sys.executable, True, (has_it,))
    found = missing_module("/usr/bin/python3: No module named lightning", environ)
    assert found == MissingModule("lightning", sys.executable, False, (active, has_it))
    assert missing_module("ValueError: no", environ) is None


def test_the_hint_names_the_interpreter_the_others_and_the_option() -> None:
    missing = {"module": "timm", "python": "/v/bin/python", "has_it": True, "others": ["/b/bin/python"]}
    hint = hint_of(Seen(culprit(host="n1", code=1, missing=missing), "ModuleNotFoundError No module named 'timm'"))
    assert hint.startswith("/v/bin/python on n1 has no module timm; these interpreters there have it: /b/bin/python;")
    assert "--set profile.python=PATH" in hint
    assert "/v/bin/python -m pip install" in hint
    alone = hint_of(Seen(culprit(host="n1", code=1, missing={**missing, "others": []}), ""))
    assert "has no module timm; choose" in alone
    for missing in (None, {}, {"module": ""}):
        assert hint_of(Seen(culprit(code=1, missing=missing), "No module named 'x'")).startswith("an import failed")
