"""Reads this process's cgroup: its out-of-memory kills, and its limits on memory and processes."""

from __future__ import annotations

import os

from orchestrator.node.system.kernel_files import read_text

NO_LIMIT = 1 << 60  # cgroups of version 1 have a huge number as "no limit"


def oom_kills(cgroups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int:
    """Return the number of out-of-memory kills in this process's cgroup (version 1 or 2), or 0 if it is unknown."""
    count = 0
    for controllers, path in _groups(cgroups):
        if controllers == "":
            count += _counter(f"{root}{path}/memory.events", "oom_kill")
        elif "memory" in controllers.split(","):
            # In a container, the file system of cgroups shows the container's own cgroup as its root.
            own = f"{root}/memory{path}"
            count += _counter(f"{own if os.path.isdir(own) else f'{root}/memory'}/memory.oom_control", "oom_kill")
    return count


def own_path(cgroups: str = "/proc/self/cgroup") -> str:
    """Return the path of this process's cgroup. With cgroups of version 1, return the path of the memory
    controller's cgroup.
    """
    return next((path for controllers, path in _groups(cgroups) if controllers in ("", "memory")), "")


def _groups(cgroups: str) -> list[tuple[str, str]]:
    """Return (controllers, path) for each cgroup of a process. In version 2 a process has one cgroup, with "" as
    controllers.
    """
    lines = [line.split(":", 2) for line in read_text(cgroups).split("\n")]
    return [(controllers, path) for _, controllers, path in (line for line in lines if len(line) == 3)]


def memory_limits(cgroups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> list[tuple[str, int]]:
    """Return (folder, limit in bytes) of each cgroup that limits this process's memory. These may be the process's own
    cgroup and its parents.
    """
    return _limits("memory", ("memory.max", "memory.limit_in_bytes"), cgroups, root)


def process_limits(cgroups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> list[tuple[str, int, int]]:
    """Return (folder, limit, present count) for each cgroup that limits how many processes and threads this process can
    start.
    """
    limits = _limits("pids", ("pids.max", "pids.max"), cgroups, root)
    return [(folder, limit, _number(f"{folder}/pids.current") or 0) for folder, limit in limits]


def _limits(controller: str, names: tuple[str, str], cgroups: str, root: str) -> list[tuple[str, int]]:
    """Return (folder, limit) of this process's cgroup and of each of its parents, if the cgroup has a limit.

    `names` are the names of the limit's file in version 2 and in version 1 of cgroups.
    """
    found = []
    for controllers, path in _groups(cgroups):
        if controllers and controller not in controllers.split(","):
            continue
        top = f"{root}/{controller}" if controllers else root
        folder = top + path.rstrip("/")
        while folder.startswith(top):
            limit = _number(f"{folder}/{names[controllers != '']}")
            if limit is not None and limit < NO_LIMIT:
                found.append((folder, limit))
            folder = os.path.dirname(folder)
    return found


def memory_used(folder: str) -> int:
    """Return how many bytes of memory a cgroup uses, without the page cache that can be freed at once."""
    used = _number(f"{folder}/memory.current")
    if used is None:
        used = _number(f"{folder}/memory.usage_in_bytes") or 0
    return max(0, used - _counter(f"{folder}/memory.stat", "inactive_file", "total_inactive_file"))


def _number(path: str) -> int | None:
    try:
        return int(read_text(path))
    except ValueError:  # the file is missing, or it contains `max`, which means no limit
        return None


def _counter(path: str, *names: str) -> int:
    """Return the first counter with one of these names in a file of lines `NAME NUMBER`; 0 if there is no such
    counter.
    """
    for name, _, value in (line.partition(" ") for line in read_text(path).splitlines()):
        if name in names:
            return int(value)
    return 0
