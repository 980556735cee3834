"""What ranks send each other: values survive it, and nothing that comes from the network is unpickled."""

from __future__ import annotations

import io
import os
import pickle
import re
from pathlib import Path

import pytest
import torch

import orchestrator.training
from orchestrator.training.distributed.encoding import decode, encode
from orchestrator.training.errors import UserError

PICKLES = {
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",
}  # fmt: skip
SOURCES = sorted(Path(orchestrator.training.__file__).parent.rglob("*.py"))


def test_values_survive() -> None:
    value = {"text": "é", 3: (1, 2.5, None, True), "nested": [["\0", {"a"}], {}], "": ""}
    assert decode(encode(value)) == value
    tensors = decode(encode({"weights": torch.arange(5), "empty": torch.zeros(0, 3)}))
    assert torch.equal(tensors["weights"], torch.arange(5))
    assert tensors["empty"].shape == (0, 3)


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_code_from_the_network_is_not_run(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    if how == "torch":
        torch.save(Evil(), buffer)
    else:
        pickle.dump(Evil(), buffer, protocol=2)
    with pytest.raises(UserError, match="is of another kind"):
        decode(torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8))
    assert list(tmp_path.iterdir()) == []


def test_no_collective_of_ours_sends_a_pickle() -> None:
    assert [
        f"{path.name}: {name}" for path in SOURCES for name in PICKLES if re.search(rf"\b{name}\b", path.read_text())
    ] == []
    assert len(SOURCES) > 40
