"""The whole testbed, up and down, and its hosts with their daemons on and off."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.testbed import docker, hosts, network, people, sge, sites, slurm, sshd
from tests.testbed.layout import MOST_NODES, Cluster, ClusterError, claim, release, standing
from tests.testbed.machine import require


def up(wanted: Cluster) -> Cluster:
    """Bring the testbed up and return it as it stands; one that can't be finished is taken down again.

    ClusterError where one stands already, and where the machine lacks something.
    """
    require(more=wanted.sge)
    _check(wanted)
    made = tuple(path for path in hosts.MOUNT_POINTS if not Path(path).exists())
    cluster = replace(wanted, made=made)
    claim(cluster)
    try:
        _build(cluster)
    except BaseException:
        down()
        raise
    return cluster


def _check(wanted: Cluster) -> None:
    if not 1 <= wanted.nodes <= MOST_NODES:
        raise ClusterError(f"--nodes is {wanted.nodes}: a testbed has 1 to {MOST_NODES} nodes beside ctl")
    if wanted.cpus < 1 or wanted.gpus < 0:
        raise ClusterError(f"--cpus is {wanted.cpus} and --gpus {wanted.gpus}: at least 1 and 0")
    if standing() is None and wanted.root.exists() and any(wanted.root.iterdir()):
        raise ClusterError(f"{wanted.root} holds files that are not a testbed's: set TESTBED to an empty folder")
    hosts.readable()


def _build(cluster: Cluster) -> None:
    for name in ("run", "log", "shared"):
        (cluster.root / name).mkdir(parents=True)
    (cluster.root / "shared").chmod(0o1777)
    for path in cluster.made:
        Path(path).mkdir(exist_ok=True)
    people.write_accounts(cluster)
    people.write_keys(cluster)
    slurm.configure(cluster)
    if cluster.sge:
        sge.configure(cluster)
    network.build_switch(cluster.nodes)
    for host in cluster.hosts:
        people.furnish(cluster, host)
        sshd.configure(cluster, host)
        if cluster.slurm:
            slurm.furnish(cluster, host)
        if cluster.docker and host != "ctl":
            docker.furnish(cluster, host)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda host: _power_on(cluster, host), cluster.hosts))
    _wait(cluster, cluster.workers)


def boot(cluster: Cluster, host: str) -> None:
    """Power on, and start the host's daemons; returns when they answer."""
    _power_on(cluster, cluster.known(host))
    _wait(cluster, cluster.workers if host == "ctl" else (host,))


def _power_on(cluster: Cluster, host: str) -> None:
    hosts.boot(cluster, host)
    sshd.start(cluster, host)
    if cluster.site:
        sites.apply(cluster, host, cluster.site)
    if cluster.slurm:
        slurm.start(cluster, host)
    if cluster.sge:
        sge.start(cluster, host)
    if cluster.docker and host != "ctl":
        docker.start(cluster, host)


def _wait(cluster: Cluster, nodes: tuple[str, ...]) -> None:
    if cluster.docker:
        for host in nodes:
            docker.wait_answering(cluster, host)
    if cluster.slurm and hosts.is_up(cluster, "ctl"):
        slurm.wait_working(cluster, tuple(host for host in nodes if hosts.is_up(cluster, host)))
    if cluster.sge and hosts.is_up(cluster, "ctl"):
        sge.wait_working(cluster, tuple(host for host in nodes if hosts.is_up(cluster, host)))


def down() -> None:
    """Take down what stands, finished or not: processes, namespaces, mounts, files; fine where nothing stands."""
    cluster = standing()
    if cluster is None:
        return
    for host in cluster.hosts:
        hosts.crash(cluster, host)
    hosts.end_all(network.SWITCH)
    network.remove_switch()
    docker.remove_cgroups(cluster)
    docker.remove_stores(cluster)
    if cluster.root.exists():
        shutil.rmtree(cluster.root)
    for path in map(Path, cluster.made):
        if path.exists():
            path.rmdir()
    release()
