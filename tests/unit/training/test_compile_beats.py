"""A compilation in the midst of training is told by the heartbeat, so that it is not taken for a hang."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from orchestrator.training.progress.heartbeat import Heartbeat, HeartbeatFile


def test_while_torch_compiles_the_beat_says_so_and_then_what_it_said_before(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    beats = HeartbeatFile(tmp_path / "beat_0")

    def told() -> tuple[str, int]:
        beat = json.loads((tmp_path / "beat_0").read_text())
        return beat["phase"], beat["step"]

    def backend(module: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        seen.append(told())
        return module.forward

    step = torch.compile(lambda batch: batch * 2, backend=backend)
    try:
        beats.write(Heartbeat(step=7, phase="train"))
        step(torch.ones(300))
        assert told() == ("train", 7)
        step(torch.ones(199))  # the smaller last batch of an epoch
        assert seen == [("compile", 7), ("compile", 7)]
        assert told() == ("train", 7)
        with torch.no_grad():
            beats.write(Heartbeat(step=7, phase="eval"))
            step(torch.ones(300))
        assert told() == ("eval", 7)
    finally:
        torch._dynamo.reset()
        torch._dynamo.callback.callback_handler.clear()
        beats.close()
