"""The shipped GPT, whose process is killed once at a step of its first attempt ($KILL_AT), before that step's loss."""

import os
import signal
from pathlib import Path

from jobs_gpt import data, metrics, model  # noqa: F401 (the task)
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

calls = {"training": 0}


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over all letters; counted, for the kill."""
    calls["training"] += outputs.requires_grad
    if calls["training"] == int(os.environ.get("KILL_AT", "0")) and os.environ["ORCH_ATTEMPT"] == "0":
        parent = Path(f"/proc/{os.getppid()}/fd")
        held = {os.readlink(each) for each in parent.iterdir() if each.is_symlink()}
        Path(os.environ["ORCH_OUTPUT_DIR"], "held_devices.txt").write_text(
            "".join(f"{name}\n" for name in sorted(held) if "/dev/nvidia" in name)
        )
        os.kill(os.getpid(), signal.SIGKILL)
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())
