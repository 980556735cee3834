"""How many files this process may have open at once: more where many nodes connect, and as before for its children."""

from __future__ import annotations

import resource

OWN = 192  # files beside the connections of nodes: logs, pipes, connections that are no node's

_at_start = resource.getrlimit(resource.RLIMIT_NOFILE)


def limit_at_start() -> tuple[int, int]:
    """Return the soft and the hard limit that this process was started with, which its children are to have."""
    return _at_start


def allow_connections(least: int, most: int) -> None:
    """Raise the soft limit for up to `most` connections; OSError where the hard one is too low for `least`."""
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
    """Give a child the limit that this process was started with."""
    if resource.getrlimit(resource.RLIMIT_NOFILE) != _at_start:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _at_start)
