"""What takes two GPUs: one process with several devices, and NCCL between them."""

from __future__ import annotations

import json
from typing import Any

from tests.gpu.lab import Lab, succeeded
from tests.gpu.trainings import copy_checkpoints, distance, keep_only, train

ARGV = ("--steps", "10", "--save-every", "5", "--lr", "0.01", "--precision", "fp32")


def data_parallel(lab: Lab) -> dict[str, Any]:
    """Train dp in bf16 over all GPUs: every layer computes in bf16, and none in float16 without a scaler."""
    import torch

    seen: set[torch.dtype] = set()
    plain = torch.nn.functional.linear

    def watched(inputs: torch.Tensor, *args: Any) -> torch.Tensor:
        result = plain(inputs, *args)
        seen.add(result.dtype)
        return result

    torch.nn.functional.linear = watched
    try:
        train(lab, "dp", "--steps", "5", "--save-every", "5", "--strategy", "dp", "--precision", "bf16", grouped=False)
    finally:
        torch.nn.functional.linear = plain
    assert seen == {torch.bfloat16}, f"its layers computed in {seen}"
    return {"devices": torch.cuda.device_count()}


def model_parallel(lab: Lab) -> dict[str, Any]:
    """Cut a model over the GPUs, save it beside the training, and resume: as an unbroken run, dropout included."""
    argv = (*ARGV, "--strategy", "model-parallel", "--option", "dropout=0.5", "--deterministic")
    whole = train(lab, "whole", *argv, grouped=False)
    aside = train(lab, "aside", *argv, "--async-save", grouped=False)
    assert distance(whole, aside) == 0, "an asynchronous save changes what is computed"
    copy_checkpoints(lab, "aside", "again")
    keep_only(lab, "again", 5)
    assert distance(whole, train(lab, "again", *argv, grouped=False)) == 0, "resumed from it, the run differs"
    return {"resumed": "equal bit for bit"}


def group(lab: Lab) -> dict[str, Any]:
    """Join all GPUs by NCCL as a job does, with nothing set, and copy between them: what arrives is what was sent."""
    import torch

    count = torch.cuda.device_count()
    text = "name: plain\nlauncher: exec\nscript: everywhere.py\n"
    ended = succeeded(lab.submit(lab.job("plain", text), lab.profile(nproc=count)))
    told = json.loads(ended.log(0).strip().splitlines()[-1])
    sent = torch.randn(1 << 24, device="cuda:0")
    for number in range(1, count):
        assert torch.equal(sent.to(f"cuda:{number}").cpu(), sent.cpu()), (
            f"a copy to GPU {number} changes what is copied"
        )
    return {"GPUs": count, **told}
