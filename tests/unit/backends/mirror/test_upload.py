"""What a machine is refused for before anything is sent to it, and what a spare is sent."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends.mirror import upload
from orchestrator.backends.mirror.upload import prepare_node
from orchestrator.errors import BackendError
from orchestrator.protocol.reading import MOST_LINES
from orchestrator.runs.store import RunDir
from tests.machines import FakeMachine
from tests.unit.backends.mirror.session import LocalSession
from tests.unit.specs.test_plan import planned, profile


def test_a_node_that_can_not_prove_itself_takes_part_only_alone(tmp_path: Path) -> None:
    several, alone = planned().tasks[0], planned(a_profile=profile(nodes=1)).tasks[0]
    has = {"time": 0.0, "cores": 1, "gpus": 0, "memory": 1 << 30, "free": 1 << 40, "workdir": "/w"}
    hello = {**has, "lacks_tls": "its Python has no ssl"}
    old = FakeMachine("n1", {"hello": hello, "interpreter": BackendError("n1: it was found fit")})
    with pytest.raises(
        BackendError, match="n1: its Python has no ssl, by which nodes authenticate one another"
    ) as refused:
        prepare_node(old, RunDir(tmp_path), several, "/w", None, is_new=False)
    assert "OpenSSL 1.1.1" in refused.value.hint
    with pytest.raises(BackendError, match="n1: it was found fit"):
        prepare_node(old, RunDir(tmp_path), alone, "/w", None, is_new=False)


class Spare(LocalSession):
    """A machine that counts the bytes that it is sent, by path, and writes none."""

    def __init__(self) -> None:
        super().__init__()
        self.got: Counter[str] = Counter()
        self.paths: dict[str, str] = {}

    def ask(self, do: str, payload: bytes = b"", **values: Any) -> Any:
        if do == "begin_file":
            self.paths[values["sender"]] = values["path"]
        path = values.get("path") or self.paths[values["sender"]]
        assert values.get("offset", 0) == self.got[path]
        self.got[path] += len(payload)
        return Taken()


class Taken:
    """The answer to a request that was carried out."""

    def wait(self, _: float | None = None) -> Any:
        return {"size": 0}, b""


def test_a_spare_is_sent_records_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "send_code", lambda *_: 0)
    monkeypatch.setattr(upload, "check_machine", lambda *_: {"time": time.time(), "answered": time.time()})
    task, spare = planned().tasks[0], Spare()
    sizes = {"nodes/0/events.jsonl": 10, "metrics.jsonl": MOST_LINES + 1}  # the larger file is sparse
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size)
    prepare_node(spare, RunDir(tmp_path), task, "/w", None, is_new=True)  # type: ignore[arg-type]
    assert spare.got == {f"{task.run_dir}/{name}": size for name, size in sizes.items()}
