"""Whether logind ends a user's processes, or removes the shared memory, when the user logs out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.node.system import logind
from orchestrator.node.system.private import user_name


def test_the_last_setting_counts_and_linger_prevents_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conf, more = tmp_path / "logind.conf", tmp_path / "logind.conf.d"
    monkeypatch.setattr(logind, "PLACES", (str(conf), str(more)))
    monkeypatch.setattr(logind, "SEATS", str(tmp_path / "seats"))
    monkeypatch.setattr(logind, "LINGER", str(tmp_path / "linger"))
    assert not logind.applies_at_logout("RemoveIPC", default=True)  # there is no logind
    (tmp_path / "seats").mkdir()
    assert logind.applies_at_logout("RemoveIPC", default=True)
    assert not logind.applies_at_logout("KillUserProcesses", default=False)
    conf.write_text("[Login]\n#KillUserProcesses=yes\n KillUserProcesses = no\n")
    more.mkdir()
    (more / "site.conf").write_text("KillUserProcesses=yes\n")
    assert logind.applies_at_logout("KillUserProcesses", default=False)
    (tmp_path / "linger").mkdir()
    (tmp_path / "linger" / user_name(os.getuid())).touch()
    assert not logind.applies_at_logout("KillUserProcesses", default=False)
