"""Reports this machine's GPUs: their state, their users, the links between them, and whether they can compute."""

from __future__ import annotations

import dataclasses
import json
import resource
from typing import Any

from orchestrator.node.server.request import Answer, RefusedError, Request, at_user
from orchestrator.node.system.gpus.devices import used_by_others
from orchestrator.node.system.gpus.nvidia_smi import output
from orchestrator.node.system.gpus.nvml import look, nvml_problem
from orchestrator.node.system.interpreter import InterpreterError, ask_interpreter
from orchestrator.node.system.kernel_files import read_text
from orchestrator.node.system.logind import applies_at_logout
from orchestrator.protocol.reading import names_in

HCAS = "/sys/class/infiniband"
# Each card is tested separately, so that a broken card is reported and the others are still tested.
TRY = """
import json, sys, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": [], "copies": []}
try:
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception:  # a build of torch without NCCL says so in several ways
    found["nccl"] = None
def attempt(work):
    try:
        work()
    except Exception as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    return ""
def compute(number):
    ones = torch.ones(1 << 18, device=f"cuda:{number}")
    if (ones + 1).sum().item() != 2 << 18:
        raise RuntimeError("it computes a wrong sum")
def copy(one, other):
    sent = torch.arange(1 << 18, device=f"cuda:{one}")
    if not torch.equal(sent.to(f"cuda:{other}").cpu(), sent.cpu()):
        raise RuntimeError("what arrives is not what was sent")
count = torch.cuda.device_count()
found["gpus"] = [attempt(lambda: compute(number)) for number in range(count)]
if not any(found["gpus"]):
    for one in range(count):
        other = (one + 1) % count
        if one != other:
            direct = torch.cuda.can_device_access_peer(one, other)
            said = attempt(lambda: copy(one, other))
            found["copies"].append({"one": one, "other": other, "direct": direct, "said": said})
print(json.dumps(found))
"""


def examine_gpus(request: Request, _: bytes) -> Answer:
    """Return the state of every GPU card, the users of the cards, the links between cards, and the settings for fast
    networks.
    """
    inventory = look()
    limits = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        **dataclasses.asdict(inventory),
        "nvml_problem": nvml_problem(),
        "used": used_by_others() if inventory.gpus else {},
        "topology": output("topo", "-m") if inventory.gpus else "",
        "hcas": _hcas(HCAS),
        "memlock": None if limits[0] == resource.RLIM_INFINITY else limits[0],
        "removes_ipc": applies_at_logout("RemoveIPC", default=True),
    }, b""


def try_gpus(request: Request, _: bytes) -> Answer:
    """In the training interpreter, run a computation on each GPU and copy data from each GPU to the next. Return the
    results.
    """
    python = at_user(request["python"])
    try:
        return ask_interpreter(
            python, "-c", TRY, setup=request.get("setup", ()), seconds=float(request["seconds"])
        ), b""
    except InterpreterError as error:
        raise RefusedError(f"the training interpreter {python} {error}") from error


def print_gpus(python: str, seconds: str) -> int:
    """Print the results of `examine_gpus` and `try_gpus` as a line of JSON. If one fails, print its error instead."""
    said, _ = examine_gpus({}, b"")
    tried: Any = {}
    if said["gpus"]:
        try:
            tried, _ = try_gpus({"python": python, "seconds": seconds}, b"")
        except RefusedError as error:
            tried = str(error)
    print(json.dumps({"said": said, "tried": tried}))
    return 0


def _hcas(folder: str) -> list[dict[str, Any]]:
    """Return the ports of InfiniBand and RoCE adapters, each with its adapter, number, state and rate."""
    found = []
    for name in names_in(folder):
        for port in names_in(f"{folder}/{name}/ports"):
            state, rate = (read_text(f"{folder}/{name}/ports/{port}/{what}").strip() for what in ("state", "rate"))
            found.append({"hca": name, "port": port, "state": state.partition(": ")[2], "rate": rate})
    return found
