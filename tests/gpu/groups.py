"""Two ranks on one GPU over NCCL: what it takes, and what is said without it."""

from __future__ import annotations

import json
from typing import Any

from tests.gpu.lab import Lab, succeeded

# Each rank takes itself for a host of its own, so NCCL does not see that they share a card; loopback joins them.
APART = (
    "{NCCL_SOCKET_IFNAME: lo, NCCL_IB_DISABLE: '1', NCCL_MNNVL_ENABLE: '0', NCCL_NVLS_ENABLE: '0', NCCL_MAX_CTAS: '2'}"
)


def pair(lab: Lab) -> dict[str, Any]:
    """Let two ranks talk in every way that orch uses, and train DDP: within 1e-5 of one rank."""
    weights = {}
    for ranks in (1, 2):
        text = f"name: pair{ranks}\nlauncher: exec\nscript: pair.py\nenv: {APART}\n"
        job, profile = lab.job(f"pair{ranks}", text), lab.profile(nproc=ranks)
        ended = succeeded(lab.submit(job, profile, "--env", f"DEVICE={lab.device}"))
        told = [json.loads(ended.log(rank).strip().splitlines()[-1]) for rank in range(ranks)]
        assert all(each["weights"] == told[0]["weights"] for each in told), "the ranks' weights differ"
        weights[ranks] = told[0]["weights"]
    distance = max(abs(a - b) for a, b in zip(weights[1], weights[2], strict=True))
    assert distance < 1e-5, f"DDP of two ranks is {distance} from one"
    return {"distance from one rank": distance}


def duplicate(lab: Lab) -> dict[str, Any]:
    """Without that NCCL refuses, or orch does before; either way it is named."""
    text = "name: both\nlauncher: exec\nscript: pair.py\nretry: {infra: 0}\n"
    job = lab.job("both", text)
    ended = lab.submit(job, lab.profile(nproc=2), "--env", "DEVICE=cuda", "--env", "PLAIN=1")
    assert ended.status["state"] == "failed", "two NCCL ranks on one GPU: it worked; this check has to be thought over"
    said = lab.orch("why", "last").stdout
    assert "GPU" in said, said
    assert "one" in said or "same" in said or "uplicate" in said, said
    return {"said": next(line for line in said.splitlines() if "GPU" in line).strip()[:200]}
