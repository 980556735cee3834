"""What starts, watches and ends runs, by the kind of their profile; loaded only when one of that kind is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from orchestrator.backends.base import Backend
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.specs.profile import AnyProfile

_REGISTRY = {
    "local": "orchestrator.backends.local:LocalBackend",
    "ssh": "orchestrator.backends.ssh.backend:SshBackend",
    "slurm": "orchestrator.backends.slurm.scheduler:here",
    "slurm-login": "orchestrator.backends.slurm.scheduler:through_login",
}

_made: Final[dict[str, Backend]] = {}
_making: Final = RLock()


def kind_of(profile: Mapping[str, Any]) -> str:
    """Return the kind of backend that a profile asks for: its own, and whether that is reached through a login node."""
    return "slurm-login" if profile.get("login") else str(profile["kind"])


def is_known(kind: str) -> bool:
    """Tell whether this version has a backend for profiles of this kind."""
    return kind in _REGISTRY


def backend(kind: str) -> Backend:
    """Return the backend for profiles of this kind, one a process; UsageError where this version has none."""
    if not is_known(kind):
        raise UsageError(
            f"profiles of kind {kind} can be planned, but this version of orch can't submit to them yet",
            "try the same plan on this machine: add --rehearse",
        )
    with _making:  # the supervisor's threads ask at once, and each one made would have connections of its own
        if kind not in _made:
            module, _, name = _REGISTRY[kind].partition(":")
            _made[kind] = getattr(import_module(module), name)()
        return _made[kind]


def backend_of(profile: AnyProfile) -> Backend:
    """Return the backend for a profile; UsageError where this version has none."""
    return backend(kind_of(dict(profile)))
