"""Raises this process's limit on open files, so that it can connect to many nodes. Child processes get the original
limit.
"""

from __future__ import annotations

import resource
import sys

OWN = 192  # the number of open files besides the connections to nodes, such as logs and pipes

_at_start = resource.getrlimit(resource.RLIMIT_NOFILE)


def allow_connections(least: int, most: int) -> None:
    """Raise the soft limit on open files so that it allows up to `most` connections.

    Raises OSError if the hard limit does not allow `least` connections.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = most + OWN if hard == resource.RLIM_INFINITY else hard
    if allowed < least + OWN:
        raise OSError(
            f"this node may have {hard} files open at once, and {least} connections need {least + OWN}: "
            "raise its hard limit (ulimit -Hn; LimitNOFILE= of sshd or slurmd)"
        )
    if soft != resource.RLIM_INFINITY and soft < most + OWN:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(allowed, most + OWN)), hard))


def restore_limit(pid: int) -> None:
    """Reset a child process's limit on open files to the limit with which this process was started."""
    if sys.platform != "darwin" and resource.getrlimit(resource.RLIMIT_NOFILE) != _at_start:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _at_start)
