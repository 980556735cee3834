"""Code by its contents: what is missing is told, and what a run needs is made from what is kept."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.node.server import code_cache
from orchestrator.node.server.request import RefusedError


def test_code_is_laid_out_from_its_contents(tmp_path: Path) -> None:
    contents = [b"print(1)\n", b"#!/bin/sh\n"]
    digests = [hashlib.sha256(each).hexdigest() for each in contents]
    values: dict[str, Any] = {"workdir": str(tmp_path), "code_dir": str(tmp_path / "run/code")}
    absent, data = code_cache.missing(values, json.dumps(digests).encode())
    assert (absent, json.loads(data)) == ({}, digests)
    listing = {"a": ["d", ""], "a/one.py": ["f", digests[0]], "run.sh": ["x", digests[1]], "link": ["l", "a/one.py"]}
    code_cache.unpack({**values, "sizes": [len(each) for each in contents], "listing": listing}, b"".join(contents))
    code = tmp_path / "run/code"
    assert (code / "a/one.py").read_bytes() == (code / "link").read_bytes() == contents[0]
    assert os.access(code / "run.sh", os.X_OK)
    assert json.loads(code_cache.missing(values, json.dumps(digests).encode())[1]) == []


@pytest.mark.parametrize(("path", "digest"), [("../x", "0" * 64), ("/x", "0" * 64), ("x", "../../etc/passwd")])
def test_code_can_not_leave_its_folder(tmp_path: Path, path: str, digest: str) -> None:
    values = {
        "workdir": str(tmp_path),
        "code_dir": str(tmp_path / "code"),
        "sizes": [],
        "listing": {path: ["f", digest]},
    }
    with pytest.raises(RefusedError):
        code_cache.unpack(values, b"")
    assert not (tmp_path / "code").exists()


def test_a_content_that_was_torn_or_changed_is_missing_and_never_laid_out(tmp_path: Path) -> None:
    content, elsewhere = b"print(1)\n", tmp_path / "mine"
    digest = hashlib.sha256(content).hexdigest()
    kept = tmp_path / "cache/code" / digest
    values: dict[str, Any] = {"workdir": str(tmp_path), "code_dir": str(tmp_path / "run/code")}
    listing = {"one.py": ["f", digest]}
    code_cache.unpack({**values, "sizes": [len(content)]}, content)
    for plant in (lambda: kept.write_bytes(b"print('evil')\n"), lambda: kept.symlink_to(elsewhere)):
        kept.unlink()
        elsewhere.write_bytes(content)
        plant()
        assert json.loads(code_cache.missing(values, json.dumps([digest]).encode())[1]) == [digest]
        with pytest.raises((RefusedError, OSError)):
            code_cache.unpack({**values, "sizes": [], "listing": listing}, b"")
        assert list(tmp_path.glob("run/*")) == []
    code_cache.unpack({**values, "sizes": [len(content)], "listing": listing}, content)
    assert (tmp_path / "run/code/one.py").read_bytes() == content
    assert not kept.is_symlink()
