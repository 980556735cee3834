"""The checks of `make gpu`: what each asks, its limit, and whether it must pass; known without torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lab import Lab

CHECKS_PART, SPEED_PART = "checks", "speed"  # checks share the GPU three at a time, speed has it alone


@dataclass(frozen=True)
class Check:
    """One question to a machine with a GPU.

    `known` names a finding for which it may fail; where it passes all the same, that is said, and the mark has to go.
    `on_cpu` tells whether a rehearsal on the CPU shows anything; `after` is a check without which it has no chance.
    """

    name: str
    where: str  # module:function in this package
    limit: int  # seconds
    asks: str
    part: str = CHECKS_PART
    must: bool = True
    known: str = ""
    gpus: int = 1
    on_cpu: bool = True
    after: str = ""

    def function(self) -> Callable[[Lab], dict[str, Any]]:
        """Return what makes the check: it returns values for the table, and raises AssertionError where it fails."""
        module, _, name = self.where.partition(":")
        found: Callable[[Lab], dict[str, Any]] = getattr(importlib.import_module(f"tests.gpu.{module}"), name)
        return found


CHECKS = (
    Check("P1", "facts:facts", 15, "versions; orch counts as many GPUs as torch; nobody else computes on them"),
    Check("P2", "facts:ceilings", 15, "what the card gives: matrix products, copies", part=SPEED_PART, must=False),
    Check("T1", "starts:automatic", 45, "a shipped job with nothing set: NCCL on cuda:0, and its loss falls"),
    Check(
        "T2",
        "starts:fork_equals_exec",
        45,
        "ranks forked and exec'd, killed and restarted: the same losses, bit for bit",
    ),
    Check("T3", "starts:four_on_one", 45, "four forked ranks share a GPU over gloo, each with a context of its own"),
    Check(
        "T4",
        "starts:warm_imports",
        40,
        "the launcher's word on each warm import is what a forked child can do",
        on_cpu=False,
    ),
    Check(
        "T5", "starts:hidden_gpu", 30, "a node whose GPUs the ranks don't see is refused in a sentence", on_cpu=False
    ),
    Check(
        "T6",
        "groups:pair",
        60,
        "two NCCL ranks on one GPU: collectives, objects, send and receive, DDP equals one rank",
        on_cpu=True,
    ),
    Check("T7", "groups:duplicate", 30, "two NCCL ranks on one GPU without that are named as such", on_cpu=False),
    Check("T8", "numbers:strategies", 60, "each strategy's weights against float64 on the CPU: fp32, tf32, bf16, fp16"),
    Check(
        "T9", "numbers:resume", 45, "saved on the GPU, resumed there, on the CPU and back; dropout goes on where it was"
    ),
    Check("T10", "numbers:async_save", 30, "what an asynchronous save writes is what was there at its step"),
    Check("T11", "faults:hangs", 90, "a rank that stands in Python, in a kernel, before a collective is the one named"),
    Check(
        "T12",
        "faults:errors",
        60,
        "out of memory, assert, illegal access, ordinal, fork, NaN: cause and hint",
        on_cpu=False,
    ),
    Check("T13", "starts:stopped", 45, "a cancel leaves a checkpoint, a KILL nothing on the GPU"),
    Check("T14", "numbers:syncs", 30, "no synchronisation with the device between log lines", on_cpu=False),
    Check("T15", "numbers:sharded_memory", 40, "FSDP's start never holds the whole model", on_cpu=False),
    Check(
        "T16",
        "numbers:compiled",
        60,
        "an epoch with an odd batch, evaluation, resume: three compilations at most",
        must=False,
    ),
    Check("T17", "numbers:loader", 40, "what workers read is what is in memory, bit for bit"),
    Check("T18", "numbers:cores", 20, "a rank stays on the cores near its GPU", must=False, on_cpu=False),
    Check(
        "S1", "speed:start", 60, "start to joined: fork, exec, torchrun; medians of three", part=SPEED_PART, must=False
    ),
    Check("S2", "speed:iterations", 30, "steps of DDP a second against torchrun", part=SPEED_PART, must=False),
    Check("S3", "speed:trainer", 40, "the shared trainer against a loop written by hand", part=SPEED_PART, must=False),
    Check(
        "S4",
        "speed:utilisation",
        90,
        "a GPT of 1.2 B parameters: FLOP/s in fp32, tf32, bf16, compiled",
        part=SPEED_PART,
        must=False,
        on_cpu=False,
    ),
    Check(
        "S6", "speed:checkpoint", 30, "10 GB: how long a save holds training up, and takes", part=SPEED_PART, must=False
    ),
    Check(
        "S7",
        "speed:bare",
        30,
        "the same script under orch and torchrun: samples a second, peak memory",
        part=SPEED_PART,
        must=False,
    ),
    Check(
        "S8",
        "starts:leased",
        20,
        "a run holds a card by the UUID by which CUDA shows it that one alone",
        part=SPEED_PART,  # a card on which another check computes is not given
        must=False,
        on_cpu=False,
    ),
    Check("D1", "devices:data_parallel", 60, "dp in bf16 over two GPUs computes in bf16", gpus=2, on_cpu=False),
    Check(
        "D2",
        "devices:model_parallel",
        60,
        "a model in pieces on two GPUs: asynchronous saves, dropout after a resume",
        gpus=2,
        on_cpu=False,
    ),
    Check("D3", "devices:group", 60, "NCCL over all GPUs, plainly; copies between them, checked", gpus=2, on_cpu=False),
)
