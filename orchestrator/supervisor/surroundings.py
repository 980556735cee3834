"""The surroundings of a submission (environment variables, umask, limits, affinity, control group), which the agents on
this machine inherit.

A later start runs in a process with the same surroundings, as far as the kernel permits that.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from orchestrator.node.system.cgroup import own_path
from orchestrator.node.system.private import users_umask
from orchestrator.node.system.processes import status_of

LIMITS: Final = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
UNLIMITED: Final = resource.RLIM_INFINITY


def surroundings(hidden: Collection[str], folder: str | None = None) -> dict[str, Any]:
    """Return what a program would inherit from this process (environment, folder, umask, limits, processors, control
    group) as JSON types. The environment variables in `hidden` are left out.

    `folder` is the folder in which the run was submitted, or None if it is this process's folder.
    """
    return {
        "environment": {name: value for name, value in os.environ.items() if name not in hidden},
        "folder": own_folder() if folder is None else folder,
        "umask": umask(),
        "limits": {name: resource.getrlimit(number) for name, number in LIMITS.items()},
        "processors": sorted(_processors()),
        "cgroup": own_path(),
    }


def _processors() -> set[int]:
    if sys.platform == "darwin":
        return set()
    return os.sched_getaffinity(0)


def own_folder() -> str:
    """Return the working folder of this process; "" if the folder was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def umask() -> int:
    """Return the umask with which this process was started. `os.umask` is not used, because it would change the umask
    of other threads.
    """
    if (users := users_umask()) >= 0:
        return users
    return int(status_of(os.getpid(), "Umask") or "022", 8)


def restore(kept: Mapping[str, Any]) -> list[str]:
    """Give this process the recorded working folder, limits and CPU affinity. Return a sentence for each part that
    can't be restored, which may also be the control group.

    The parent process has already set the environment variables and the umask.
    """
    return [*_restore_folder(str(kept.get("folder", ""))), *_restore_limits(kept.get("limits", {})),
            *_restore_processors(set(kept.get("processors", ()))), *_lost_cgroup(kept.get("cgroup", ""))]  # fmt: skip


def _restore_folder(folder: str) -> Iterator[str]:
    if not folder:
        return
    try:
        os.chdir(folder)
    except OSError as error:
        yield f"the folder {folder} can't be entered: {error.strerror}"


def _restore_limits(limits: Mapping[str, Any]) -> Iterator[str]:
    """Restore the soft and hard limits. A process without privileges can't raise a hard limit."""
    for name, (soft, hard) in sorted(limits.items()):
        if name not in LIMITS or (soft, hard) == resource.getrlimit(number := LIMITS[name]):
            continue
        try:
            resource.setrlimit(number, (soft, hard))
        except (OSError, ValueError):  # the hard limit would be raised
            most = _least(hard, resource.getrlimit(number)[1])
            resource.setrlimit(number, (_least(soft, most), most))
        if (now := resource.getrlimit(number)[0]) != soft:
            yield f"{name} is {_in_words(now)} instead of {_in_words(soft)}"


def _least(one: int, other: int) -> int:
    return min((each for each in (one, other) if each != UNLIMITED), default=UNLIMITED)


def _in_words(limit: int) -> str:
    return "unlimited" if limit == UNLIMITED else str(limit)


def _restore_processors(processors: set[int]) -> Iterator[str]:
    if not processors or sys.platform == "darwin":
        return
    with contextlib.suppress(OSError):  # no recorded processor can be used any more
        os.sched_setaffinity(0, processors)
    if lost := processors - _processors():
        yield f"the processors {', '.join(map(str, sorted(lost)))} can't be used"


def _lost_cgroup(cgroup: str) -> Iterator[str]:
    """Yield a warning if this process is not in the control group that was recorded. orch can't move it there,
    because only the group's manager (such as systemd) may do so.
    """
    if cgroup and (now := own_path()) != cgroup:
        yield f"the control group is {now} instead of {cgroup}"
