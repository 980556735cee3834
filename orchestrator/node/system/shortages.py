"""Explains a system error, such as a failed fork, by the resource of this machine that is exhausted and the limit on
this resource.
"""

from __future__ import annotations

import errno
import os
import resource

from orchestrator.node.system.cgroup import memory_limits, process_limits
from orchestrator.protocol.quantities import size

# If fewer processes than this are free below the limit, it counts as reached. The failed start may have freed some.
LEAST_LEFT = 16


def shortage(error: BaseException) -> str:
    """Return a sentence about the exhausted resource that has caused this error, and its limit; "" if the error has
    another cause.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EAGAIN or "can't start new thread" in str(error):
        return f"no process or thread can be started: {_limit_of_processes()}"
    if number == errno.EMFILE:
        return f"no file can be opened: ulimit -n allows {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} for a process"
    if number == errno.ENFILE:
        return "no file can be opened: the machine's limit of open files is reached (fs.file-max)"
    if number == errno.ENOMEM or isinstance(error, MemoryError):
        return f"no memory is left: {_limit_of_memory()}"
    if number == errno.ENOSPC and isinstance(error, OSError) and _has_no_inodes(error.filename):
        return f"no inode is left on the file system of {error.filename}"
    return ""


def _limit_of_processes() -> str:
    for folder, limit, count in process_limits():
        if count > limit - LEAST_LEFT:
            return f"its cgroup has {count} of at most {limit} (pids.max of {folder})"
    return f"ulimit -u allows this user {resource.getrlimit(resource.RLIMIT_NPROC)[0]}"


def _limit_of_memory() -> str:
    for folder, limit in memory_limits():
        return f"its cgroup has at most {size(limit)} ({folder})"
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return f"ulimit -v allows {size(limit)}" if limit != resource.RLIM_INFINITY else "the machine's memory is used up"


def _has_no_inodes(path: object) -> bool:
    try:
        found = os.statvfs(os.path.dirname(str(path)) or ".")
    except OSError:
        return False
    return found.f_files > 0 and found.f_favail == 0
