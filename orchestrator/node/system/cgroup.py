"""Reads this process's cgroup: its kills for memory, and its limits on memory and processes."""

from __future__ import annotations

import contextlib
import os

NO_LIMIT = 1 << 60  # version 1 writes a huge number for "no limit"


def oom_kills(cgroups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int:
    """Return the number of out-of-memory kills in this cgroup, version 1 or 2; 0 if the kernel does not report it."""
    count = 0
    for controllers, path in _groups(cgroups):
        if controllers == "":
            count += _read(f"{root}{path}/memory.events")
        elif "memory" in controllers.split(","):
            # in a container the tree starts at the container's own group, under another name
            own = f"{root}/memory{path}"
            count += _read(f"{own if os.path.isdir(own) else f'{root}/memory'}/memory.oom_control")
    return count


def own_path(cgroups: str = "/proc/self/cgroup") -> str:
    """Return the path of this cgroup; in version 1, which has several, that of the memory controller."""
    return next((path for controllers, path in _groups(cgroups) if controllers in ("", "memory")), "")


def _groups(cgroups: str) -> list[tuple[str, str]]:
    """Return (controllers, path) of each cgroup of a process; in version 2 there is one, without controllers."""
    try:
        with open(cgroups, encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    return [(controllers, path) for _, controllers, path in (line for line in lines if len(line) == 3)]


def memory_limits(cgroups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> list[tuple[str, int]]:
    """Return (folder, limit in bytes) for this cgroup and each parent that limits memory."""
    return _limits("memory", ("memory.max", "memory.limit_in_bytes"), cgroups, root)


def process_limits(cgroups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> list[tuple[str, int, int]]:
    """Return (folder, limit, count) of processes and threads for this cgroup and each parent that limits them."""
    limits = _limits("pids", ("pids.max", "pids.max"), cgroups, root)
    return [(folder, limit, _number(f"{folder}/pids.current") or 0) for folder, limit in limits]


def _limits(controller: str, names: tuple[str, str], cgroups: str, root: str) -> list[tuple[str, int]]:
    """Return (folder, limit) of each cgroup with a limit.

    `names` are the limit's files in versions 2 and 1 of cgroups.
    """
    found = []
    for controllers, path in _groups(cgroups):
        if controllers not in ("",) and controller not in controllers.split(","):
            continue
        top = root if controllers == "" else f"{root}/{controller}"
        folder = top + path.rstrip("/")
        while folder.startswith(top):
            limit = _number(f"{folder}/{names[controllers != '']}")
            if limit is not None and limit < NO_LIMIT:
                found.append((folder, limit))
            folder = os.path.dirname(folder)
    return found


def memory_used(folder: str) -> int:
    """Return the bytes that a cgroup uses, without the page cache that can be freed at once."""
    used = _number(f"{folder}/memory.current")
    if used is None:
        used = _number(f"{folder}/memory.usage_in_bytes") or 0
    with contextlib.suppress(OSError, ValueError), open(f"{folder}/memory.stat", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return max(0, used - int(value))
    return used


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # there is no limit, or it is `max`
        return None


def _read(path: str) -> int:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
