"""What this machine is, and what its first GPU gives at best."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.gpu.lab import Lab


def machine() -> dict[str, Any]:
    """Return how many GPUs torch can use, this machine in words, and why torch can't use one."""
    import torch

    problem = "this torch was built without CUDA" if torch.version.cuda is None else ""
    gpus = 0
    try:
        torch.cuda.init()
        gpus = torch.cuda.device_count()
    except (RuntimeError, AssertionError) as error:
        problem = problem or str(error).splitlines()[0]
    names = [torch.cuda.get_device_name(number) for number in range(gpus)]
    words = (
        f"{gpus} GPUs ({', '.join(sorted(set(names))) or 'none'}), {os.cpu_count()} cores; torch {torch.__version__}"
    )
    return {
        "gpus": gpus,
        "words": f"{words}, CUDA {torch.version.cuda}, Python {sys.version.split()[0]}",
        "problem": problem,
    }


def facts(lab: Lab) -> dict[str, Any]:
    """Assert that orch's own count of GPUs is torch's; return versions, and who else computes there."""
    import torch

    from orchestrator.node.system.gpus.devices import gpus

    if not lab.cuda:
        return {"torch": torch.__version__, "orch counts": gpus()}
    assert gpus() == torch.cuda.device_count(), f"orch counts {gpus()} GPUs, torch {torch.cuda.device_count()}"
    asked = "driver_version,ecc.errors.uncorrected.volatile.total,memory.used,utilization.gpu"
    argv = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
    said = subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip().splitlines()
    return {
        "torch": torch.__version__, "CUDA": torch.version.cuda, "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
        "driver, ECC errors, memory, use": said[0] if said else "nvidia-smi says nothing",
    }  # fmt: skip


def ceilings(lab: Lab) -> dict[str, Any]:
    """Return TFLOP/s of matrix products by precision, and GB/s of copies: what other figures are held against."""
    import torch

    values: dict[str, Any] = {}
    size = lab.of(8192, 256)
    for name, dtype, tf32 in (
        ("bf16", torch.bfloat16, False),
        ("tf32", torch.float32, True),
        ("fp32", torch.float32, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(size, size, device=lab.device, dtype=dtype) for _ in range(2))
        values[f"{name} TFLOP/s"] = round(2 * size**3 / seconds_of(lab, lambda a=a, b=b: a @ b) / 1e12, 1)
    count = lab.of(2**30, 2**22)
    there = torch.empty(count, dtype=torch.uint8, device=lab.device)
    other = torch.empty_like(there)
    values["copy on the device GB/s"] = round(2 * count / seconds_of(lab, lambda: other.copy_(there)) / 1e9, 1)
    for name, pinned in (("pinned", lab.cuda), ("pageable", False)):
        here = torch.empty(count, dtype=torch.uint8, pin_memory=pinned)
        values[f"to the device, {name} GB/s"] = round(count / seconds_of(lab, lambda h=here: there.copy_(h)) / 1e9, 1)
        values[f"from the device, {name} GB/s"] = round(count / seconds_of(lab, lambda h=here: h.copy_(there)) / 1e9, 1)
    return values


def seconds_of(lab: Lab, work: Callable[[], Any], times: int = 10) -> float:
    """Return the mean seconds of this work on the device, after three turns that don't count."""
    import torch

    for _ in range(3):
        work()
    if lab.cuda:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(times):
        work()
    if lab.cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / times


if __name__ == "__main__":
    print(json.dumps(machine()))
