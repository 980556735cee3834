"""A Docker daemon a node, with images, containers and socket of its own. Containers use the node's network."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.testbed.hosts import enter
from tests.testbed.layout import Cluster
from tests.testbed.machine import call, succeeds, wait_until

CGROUP = "orch-testbed"
NETWORK = ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]


def start(cluster: Cluster, host: str) -> None:
    """Start the daemon, without waiting for it."""
    daemon = ["dockerd", "--data-root=/srv/docker", f"--cgroup-parent=/{CGROUP}/{host}", "--group=docker", *NETWORK]
    shell = ["sh", "-c", 'exec "$@" >>/srv/log/dockerd.log 2>&1 </dev/null', "sh"]
    call([*enter(cluster, host), "setsid", "--fork", *shell, *daemon])


def wait_answering(cluster: Cluster, host: str) -> None:
    ask = [*enter(cluster, host), "docker", "info"]
    wait_until(lambda: succeeds(ask), f"dockerd on {host}", cluster.folder(host) / "srv" / "log" / "dockerd.log")


def remove_cgroups() -> None:
    """Remove the control groups that killed daemons left; they are empty, as their hosts are gone."""
    tree = Path("/sys/fs/cgroup")
    for top in (*tree.glob(CGROUP), *tree.glob(f"*/{CGROUP}")):  # version 2, and a tree a controller in version 1
        for folder in sorted([top, *(path for path in top.rglob("*") if path.is_dir())], reverse=True):
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()
