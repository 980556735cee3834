"""The argv that brings a command to a node, with this terminal where there is one; pure, the only place that quotes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.address import Address


def over_ssh(address: Address, argv: Sequence[str], *, terminal: bool) -> list[str]:
    """By the user's own ssh and its configuration; the command begins in the home folder there."""
    words = ["ssh", *(["-t"] if terminal else ["-T"])]
    words += ["-l", address.user] if address.user else []
    words += ["-p", str(address.port)] if address.port else []
    words += ["-i", address.key] if address.key else []
    words += ["-J", address.jump] if address.jump else []
    return [*words, "--", address.host, shlex.join(argv)]


def in_allocation(job_id: str, node: int, argv: Sequence[str], *, terminal: bool) -> list[str]:
    """As one more step of a Slurm job that runs, on the node of this number in it, beside the agent's own step."""
    words = ["srun", f"--jobid={job_id}", "--overlap", "--nodes=1", "--ntasks=1", f"--relative={node}", "--mem=0"]
    return [*words, *(["--pty"] if terminal else ["--quiet"]), *argv]
