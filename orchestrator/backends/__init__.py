"""The registry of backends. Each kind of profile has a backend, which starts, watches and ends runs. The backend's
module is imported at the first use.
"""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Final

from orchestrator.backends.base import Backend
from orchestrator.errors import UsageError
from orchestrator.specs.kinds import LOGIN, find, named

if TYPE_CHECKING:
    from orchestrator.specs.profiles import AnyProfile

_made: Final[dict[str, Backend]] = {}
_making: Final = RLock()


def kind_of(profile: AnyProfile) -> str:
    """Return the kind of a profile's runs: the profile's own kind, with `-login` added if a login node submits the
    jobs.
    """
    return f"{profile.kind}{LOGIN}" if getattr(profile, "login", None) else profile.kind


def is_known(kind: str) -> bool:
    """Return True if there is a backend for runs of this kind."""
    return bool(_path_of(kind))


def _path_of(kind: str) -> str:
    """Return the class of the backend for this kind as `module:Name`; "" if there is none."""
    name = kind.removesuffix(LOGIN)
    found = find(name)
    if found is None:
        return ""
    return found.backend if name == kind else found.login_backend


def backend_for(kind: str) -> Backend:
    """Return this process's backend for runs of this kind. Raises UsageError if the kind has no backend."""
    with _making:  # the supervisor's threads call this in parallel, and a second backend would open its own connections
        if kind not in _made:
            if not (path := _path_of(kind)):
                said = f"no installed package has a backend for profiles of kind {kind}"
                raise UsageError(
                    said,
                    "install the package that adds this kind of profile, or add "
                    "--rehearse to try the plan on this machine",
                )
            _made[kind] = named(path)()
        return _made[kind]


def backend_of(profile: AnyProfile) -> Backend:
    """Return the backend for a profile. Raises UsageError if the profile's kind has no backend."""
    return backend_for(kind_of(profile))
