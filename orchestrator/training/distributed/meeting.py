"""Compares the ranks' choices of backend and device before the ranks join the process group.

Each rank chooses for itself. If one rank joined with a different backend, all ranks would wait forever. So either all
ranks agree, or all of them end with the same error.
"""

import json
import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

import torch
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from orchestrator.training.distributed.devices import ON_GPUS, Choice
from orchestrator.training.distributed.ranks import Ranks
from orchestrator.training.errors import UserError

SHARING = ("NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE")
"""Variables with which users let several ranks share a GPU in NCCL."""


@dataclass(frozen=True)
class Answer:
    """The choice of a rank, or its error (`problem`). If ranks may not share GPUs, `gpu` identifies the rank's GPU."""

    host: str
    backend: str = ""
    device: str = ""
    reason: str = ""
    gpu: str = ""
    problem: str = ""


def meet(ranks: Ranks, choice: Choice | UserError, init_method: str, timeout: timedelta) -> tuple[Choice, Store]:
    """Return the ranks' common choice and their store. Raises UserError on all ranks if their choices differ."""
    if init_method.startswith("tcp://"):
        # Rank 0 serves this store itself, but torch before 2.15 would assume that the launcher does.
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    store, _, _ = next(rendezvous(init_method, ranks.rank, ranks.world_size, timeout=timeout))
    store.set_timeout(timeout)
    store.set(f"orch/choice/{ranks.rank}", json.dumps(asdict(_answer(choice))))
    if ranks.rank == 0:
        keys = [f"orch/choice/{rank}" for rank in range(ranks.world_size)]
        answers = [Answer(**json.loads(value)) for value in store.multi_get(keys)]
        store.set("orch/refusal", refusal(answers))
    if problem := store.get("orch/refusal").decode():
        store.set(f"orch/has_read/{ranks.rank}", "")
        if ranks.rank == 0:  # rank 0's process may serve the store, so it leaves last
            store.wait([f"orch/has_read/{rank}" for rank in range(ranks.world_size)])
        raise UserError(problem)
    assert isinstance(choice, Choice)
    return choice, store


def _answer(choice: Choice | UserError, environ: Mapping[str, str] = os.environ) -> Answer:
    found = Answer(socket.gethostname())
    if isinstance(choice, UserError):
        return replace(found, problem=str(choice))
    found = replace(found, backend=choice.backend, device=choice.device.type, reason=choice.reason)
    if choice.backend in ON_GPUS and not any(environ.get(name) for name in SHARING):
        found = replace(found, gpu=str(torch.cuda.get_device_properties(choice.device).uuid))
    return found


def refusal(answers: Sequence[Answer]) -> str:
    """Return why ranks with these answers can't train together, with the number of the first rank whose answer does not
    fit. Return "" if they can.
    """
    for rank, answer in enumerate(answers):
        if answer.problem:
            return f"Rank {rank} on {answer.host} can't train: {answer.problem}"
    ways = Counter((answer.backend, answer.device) for answer in answers)
    (common, most), *_ = ways.most_common()
    for rank, answer in enumerate(answers):
        if (answer.backend, answer.device) != common:
            return (
                f"Rank {rank} on {answer.host} would compute on {answer.device} by {answer.backend} "
                f"({answer.reason}), and {most} of {len(answers)} ranks on {common[1]} by {common[0]}: repair that "
                "node, or use --device cpu for all."
            )
    owners: dict[str, int] = {}
    for rank, answer in enumerate(answers):
        first = owners.setdefault(answer.gpu, rank) if answer.gpu else rank
        if first != rank:
            return (
                f"Ranks {first} and {rank} on {answer.host} would share one GPU ({answer.gpu}), which NCCL refuses: "
                "start a rank per GPU, or choose ORCH_BACKEND=gloo with --device cuda."
            )
    return ""
