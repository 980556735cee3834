"""A Docker daemon a node, with images, containers and socket of its own. Containers use the node's network."""

from __future__ import annotations

import errno
from pathlib import Path

from tests.testbed.hosts import enter
from tests.testbed.layout import Cluster
from tests.testbed.machine import call, succeeds, wait_until

CGROUP = "orch-testbed-"
CONTAINER_PROCESSES = 12
NETWORK = ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"]


def furnish(cluster: Cluster, host: str) -> None:
    """Give the daemon a folder in memory, which outlives a crash of its host: images are many small files."""
    _store(cluster, host).mkdir()
    call(["mount", "-t", "tmpfs", "-o", "mode=711", "tmpfs", _store(cluster, host)])


def remove_stores(cluster: Cluster) -> None:
    """Remove those folders; fine where there are none."""
    for host in cluster.workers:
        if _store(cluster, host).is_mount():
            call(["umount", _store(cluster, host)])


def _store(cluster: Cluster, host: str) -> Path:
    return cluster.folder(host) / "srv" / "docker"


def start(cluster: Cluster, host: str) -> None:
    """Start the daemon, without waiting for it."""
    _weigh(cluster)
    parent = f"--cgroup-parent=/{_cgroup(cluster)}/{host}"
    daemon = ["dockerd", "--data-root=/srv/docker", parent, "--group=docker", *NETWORK]
    shell = ["sh", "-c", 'exec "$@" >>/srv/log/dockerd.log 2>&1 </dev/null', "sh"]
    call([*enter(cluster, host), "setsid", "--fork", *shell, *daemon])


def wait_answering(cluster: Cluster, host: str) -> None:
    ask = [*enter(cluster, host), "docker", "info"]
    wait_until(lambda: succeeds(ask), f"dockerd on {host}", cluster.folder(host) / "srv" / "log" / "dockerd.log")


def _cgroup(cluster: Cluster) -> str:
    """The testbed's own: the tree of control groups is the machine's, whatever namespaces a testbed is in."""
    return CGROUP + cluster.root.name


def _weigh(cluster: Cluster) -> None:
    """Have the processes of all containers count as many: a control group counts as one beside processes without."""
    tree = Path("/sys/fs/cgroup")
    for folder, file, one in ((tree / "cpu", "cpu.shares", 1024), (tree, "cpu.weight", 100)):  # of version 1, and of 2
        if (folder / "cgroup.procs").exists():
            group = folder / _cgroup(cluster)
            group.mkdir(exist_ok=True)
            if (group / file).exists():
                (group / file).write_text(str(one * CONTAINER_PROCESSES))


def remove_cgroups(cluster: Cluster) -> None:
    """Remove the control groups that killed daemons left; they are empty, as their hosts are gone."""
    tree, name = Path("/sys/fs/cgroup"), _cgroup(cluster)
    for top in (*tree.glob(name), *tree.glob(f"*/{name}")):  # version 2, and a tree a controller in version 1
        for folder in sorted([top, *(path for path in top.rglob("*") if path.is_dir())], reverse=True):
            wait_until(lambda folder=folder: _is_removed(folder), f"the end of {folder}")


def _is_removed(folder: Path) -> bool:
    """Remove the group; False while the kernel is still taking its last processes out of it."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True
