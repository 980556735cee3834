"""How often the kernel has killed for memory in this process's cgroup."""

from __future__ import annotations

import contextlib
import os


def oom_kills(cgroups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int:
    """Return the count of this cgroup's out-of-memory kills, version 1 or 2; 0 where the kernel doesn't tell."""
    try:
        with open(cgroups, encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return 0
    count = 0
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers == "":
            count += _read(f"{root}{path}/memory.events")
        elif "memory" in controllers.split(","):
            own = f"{root}/memory{path}"  # in a container the tree begins with its own group, under another name
            count += _read(f"{own if os.path.isdir(own) else f'{root}/memory'}/memory.oom_control")
    return count


def _read(path: str) -> int:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
