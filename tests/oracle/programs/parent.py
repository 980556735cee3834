"""Starts groups of its own by subprocess, with a port of its own: `parent.py HOW`.

`plain` hands its own environment on, `session` starts each rank in a session of its own, as Ray and Dask do, `isolated`
starts interpreters that ignore PYTHONPATH, and `twice` starts two groups one after another.
"""

import os
import socket
import subprocess
import sys


def start(prefix: str, *flags: str, **options: bool) -> None:
    """Start two ranks, and wait until both have ended well."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen([sys.executable, *flags, "group.py", prefix],
                         env={**os.environ, **own, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **options)
        for rank in range(2)
    ]  # fmt: skip
    assert [rank.wait() for rank in ranks] == [0, 0]


how = sys.argv[1]
if how == "session":
    start("session_", start_new_session=True)
elif how == "isolated":
    start("isolated_", "-E")
else:
    for count in range(2 if how == "twice" else 1):
        start(f"{how}{count}_")
