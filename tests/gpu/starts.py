"""How ranks start and end on a GPU: forked and exec'd, several on one card, refused, stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.gpu.lab import Ended, Lab, succeeded

GPT = "training:\n  task: gpt_small.py\n  global_batch: 48\n  lr: 0.003\n  log_every: 1\n"
WARM = (
    "torch._dynamo",
    "torch.utils.cpp_extension",
    "torchvision",
    "transformers",
    "accelerate",
    "triton",
    "numpy",
    "sklearn",
)
FREE_MIB = 600  # of memory that a card without any process may have in use


def automatic(lab: Lab) -> dict[str, Any]:
    """Submit a shipped job as it is; on a GPU, its rank is on NCCL and cuda:0, and exec'd."""
    ended = succeeded(lab.submit("gpt", lab.profile(), "--set", f"job.training.epochs={lab.of(4, 1)}"))
    result, losses = ended.status["result"], ended.losses()
    assert result["device"].startswith(lab.device), result
    if lab.cuda:
        assert "nccl" in result["backend"], result
    assert losses[max(losses)] < 0.7 * losses[1], f"the loss went from {losses[1]} to {losses[max(losses)]}"
    return {
        "backend": result["backend"],
        "device": result["device"],
        "seconds": result["seconds"],
        "loss": round(losses[max(losses)], 3),
    }


def fork_equals_exec(lab: Lab) -> dict[str, Any]:
    """Train the same forked and exec'd, each killed once at step 25 and started again; the losses are equal."""
    told: dict[str, dict[int, float]] = {}
    for launcher in ("exec", "fork"):
        text = f"name: {launcher}\nlauncher: {launcher}\nretry: {{infra: 1}}\n{GPT}  steps: 40\n  save_every: 10\n"
        ended = succeeded(lab.submit(lab.job(launcher, text), lab.profile(), "--env", "KILL_AT=25"))
        assert ended.status["restarts"] == 1, f"{launcher}: {ended.status['restarts']} restarts"
        told[launcher] = ended.losses()
        held = [line for path in ended.folder.rglob("held_*.txt") for line in path.read_text().splitlines()]
        assert launcher == "exec" or not held, f"the launcher has {held} open"
    differing = [step for step in told["exec"] if told["exec"][step] != told["fork"].get(step)]
    assert not differing, f"the losses differ at steps {differing[:5]}"
    return {"steps": max(told["exec"]), "last loss": told["exec"][max(told["exec"])]}


def four_on_one(lab: Lab) -> dict[str, Any]:
    """Fork four ranks that share the first device over gloo."""
    text = "name: four\nlauncher: fork\nscript: sums.py\n"
    ended = succeeded(
        lab.submit(lab.job("four", text), lab.profile(nproc=4, extra="backend: gloo\n"), DEVICE=lab.device)
    )
    said = [ended.log(rank).strip().splitlines()[-1] for rank in range(4)]
    assert said == ["sum 10"] * 4, said
    return {"ranks": 4}


def warm_imports(_lab: Lab) -> dict[str, Any]:
    """Ask the launcher's probe after each warm import, and a forked child, whether CUDA works: both say the same."""
    wrong, values = [], {}
    for name in WARM:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("programs") / "fork_after.py"), name],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if done.returncode == 3:  # it is not installed here
            continue
        assert done.returncode == 0, f"{name}: {done.stderr[-300:]}"
        said = json.loads(done.stdout.strip().splitlines()[-1])
        values[name] = "can fork" if said["probe"] else "can't"
        if said["probe"] != said["child"]:
            wrong.append(f"{name}: the probe says {said['probe']}, a child {said['child']}")
    assert not wrong, "; ".join(wrong)
    return values


def hidden_gpu(lab: Lab) -> dict[str, Any]:
    """Hide the GPUs from ranks whose node has some: with backend auto that is refused, and not trained on the CPU."""
    job = lab.job("hidden", f"name: hidden\n{GPT}  steps: 5\nenv: {{CUDA_VISIBLE_DEVICES: ''}}\n")
    begun = time.monotonic()
    ended = lab.submit(job, lab.profile())
    assert ended.status["state"] == "failed", "it trained on the CPU"
    said = lab.orch("why", "last").stdout
    assert "GPU" in said, said
    return {"after s": round(time.monotonic() - begun, 1), "said": said.strip().splitlines()[2].strip()}


def leased(lab: Lab) -> dict[str, Any]:
    """Hold a card as a run does with nothing set: CUDA shows that card alone by its number."""
    text = "name: leased\nscript: given.py\n"
    ended = succeeded(lab.submit(lab.job("leased", text), lab.profile(leased=True), "--no-wait"))
    told = json.loads(ended.log().strip().splitlines()[-1])
    assert told["given"] == told["uuid"], told
    assert told["shown"].isdigit(), told
    assert (told["count"], told["order"]) == (1, "PCI_BUS_ID"), told
    return {"held": told["given"]}


def stopped(lab: Lab) -> dict[str, Any]:
    """Cancel a run under load, which leaves a checkpoint; kill another's ranks: nothing stays on the GPU."""
    text = f"name: load\nretry: {{infra: 0}}\n{GPT}  steps: 100000\n"
    job = lab.job("load", text)
    run = _started(lab, job)
    assert lab.orch("cancel", "last").returncode == 0
    saved = json.loads(lab.orch("checkpoints", "last", "--json").stdout)
    assert saved, "the cancel left no checkpoint"
    run = _started(lab, job)
    for pid in _ranks(run):
        os.kill(pid, signal.SIGKILL)
    assert lab.orch("wait", "last").returncode == 100
    if not lab.cuda:
        return {"checkpoints": len(saved)}
    deadline = time.monotonic() + 10
    while (used := _memory_of(lab)) and time.monotonic() < deadline:
        time.sleep(0.2)  # the driver takes a killed process's memory back by and by, and tells nobody
    assert not used, f"the device still has these processes of the run: {used}"
    return {"checkpoints": len(saved)}


def _started(lab: Lab, job: str) -> Ended:
    done = lab.orch("submit", job, "-p", lab.profile(), "--json")
    assert done.returncode == 0, done.stderr
    run_id = json.loads(done.stdout)["run_id"]
    run = Ended(lab.folder / "home" / "runs" / run_id, {})
    deadline = time.monotonic() + 40
    while not ((run.folder / "metrics.jsonl").exists() and max(run.losses(), default=0) >= 5):
        assert time.monotonic() < deadline, f"not five steps within 40 s: {lab.orch('logs', run_id).stdout[-400:]}"
        time.sleep(0.1)
    return run


def _ranks(run: Ended) -> list[int]:
    return [int(pid) for event in run.events("launcher_started") for pid in event["pids"].values()]


def _memory_of(lab: Lab) -> list[str]:
    """Return what nvidia-smi says of processes whose environment names this check's folder."""
    argv = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    return [line for line in lines if _is_ours(lab, line.split(",")[0])]


def _is_ours(lab: Lab, pid: str) -> bool:
    try:
        return os.fsencode(lab.folder) in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it is gone, or somebody else's
        return False
