"""The ways to reach nodes, one file each, loaded only when a profile of their kind is used."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from orchestrator.backends.base import Backend, Scheduler
from orchestrator.errors import UsageError

_REGISTRY = {
    "local": "orchestrator.backends.local:LocalBackend",
    "ssh": "orchestrator.backends.ssh:SshBackend",
    "slurm": "orchestrator.backends.slurm:SlurmBackend",
    "slurm-login": "orchestrator.backends.slurm_login:LoginBackend",
}


def kind_of(profile: Mapping[str, Any]) -> str:
    """The kind of backend that a profile asks for: its own kind, and whether that is reached through a login node."""
    return "slurm-login" if profile.get("login") else str(profile["kind"])


def is_known(kind: str) -> bool:
    """Has this version a backend for profiles of this kind?"""
    return kind in _REGISTRY


@cache
def backend(kind: str) -> Backend:
    """The backend for profiles of this kind, one a process; UsageError where this version has none."""
    if not is_known(kind):
        raise UsageError(
            f"profiles of kind {kind} can be planned, but this version of orch can't submit to them yet",
            "try the same plan on this machine: add --rehearse",
        )
    module, _, name = _REGISTRY[kind].partition(":")
    made: Backend = getattr(import_module(module), name)()
    return made


def scheduler(kind: str) -> Scheduler:
    """The same backend as what it is besides, where it has a queue of its own; UsageError where it has none."""
    found = backend(kind)
    if not isinstance(found, Scheduler):
        raise UsageError(f"profiles of kind {kind} have no batch script")
    return found
