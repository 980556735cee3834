"""Slurm with accounting: munge everywhere, MariaDB, slurmdbd and slurmctld on ctl, slurmd on every node."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from tests.testbed.hosts import enter
from tests.testbed.layout import Cluster
from tests.testbed.machine import call, succeeds, wait_until

SLURM_CONF = """\
ClusterName=testbed
SlurmctldHost=ctl
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/srv/slurm/ctld
SlurmdSpoolDir=/srv/slurm/spool
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/srv/log/slurmctld.log
SlurmdLogFile=/srv/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
SlurmdTimeout=20
KillWait=10
MinJobAge=300
ReturnToService=2
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=ctl
JobAcctGatherType=jobacct_gather/linux
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""
PARTITIONS = """\
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
PartitionName=short Nodes=ALL MaxTime=10 State=UP
"""
SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=ctl
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
PidFile=/run/slurmdbd.pid
LogFile=/srv/log/slurmdbd.log
"""
# For a database of a few jobs whose loss harms nobody.
MARIADB = ["--no-defaults", "--user=mysql", "--datadir=/srv/mysql", "--skip-networking", "--innodb-log-file-size=4M"]
WORKING = {"idle", "mixed", "allocated", "completing"}


def configure(cluster: Cluster) -> None:
    """Write /etc/slurm and /etc/munge of all hosts."""
    slurm, munge = cluster.root / "etc" / "slurm", cluster.root / "etc" / "munge"
    slurm.mkdir()
    munge.mkdir(mode=0o700)
    nodes = f"NodeName=n[1-{cluster.nodes}] CPUs={cluster.cpus} RealMemory=4000 State=UNKNOWN"
    if cluster.gpus:
        nodes += f" Gres=gpu:{cluster.gpus}\nGresTypes=gpu"
    (slurm / "slurm.conf").write_text(f"{SLURM_CONF}{nodes}\n{PARTITIONS}")
    if cluster.gpus:
        # A gres needs device files, one a GPU; Slurm then sets CUDA_VISIBLE_DEVICES.
        gres = f"NodeName=n[1-{cluster.nodes}] Name=gpu File=/srv/gpu[0-{cluster.gpus - 1}]\n"
        (slurm / "gres.conf").write_text(gres)
    version = "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1"
    (slurm / "cgroup.conf").write_text(f"CgroupMountpoint=/sys/fs/cgroup\nCgroupPlugin=cgroup/{version}\n")
    (slurm / "slurmdbd.conf").write_text(SLURMDBD_CONF)
    (slurm / "slurmdbd.conf").chmod(0o600)
    key = munge / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    user = pwd.getpwnam("munge")
    for path in (munge, key):
        os.chown(path, user.pw_uid, user.pw_gid)


def furnish(cluster: Cluster, host: str) -> None:
    """The folders of Slurm's daemons on a host, and device files in place of GPUs."""
    srv = cluster.folder(host) / "srv"
    for name in ("ctld", "spool"):
        (srv / "slurm" / name).mkdir(parents=True)
    for number in range(cluster.gpus):
        os.mknod(srv / f"gpu{number}", 0o020666, os.makedev(1, 3))


def start(cluster: Cluster, host: str) -> None:
    """Start the host's daemons of Slurm; on ctl, returns when the controller answers."""
    inside = enter(cluster, host)
    call([*inside, "install", "-d", "-o", "munge", "-m", "755", "/run/munge"])
    call([*inside, "install", "-d", "-o", "munge", "-m", "700", "/srv/munge"])
    files = ["--log-file=/srv/munge/log", "--pid-file=/run/munge/pid", "--seed-file=/srv/munge/seed"]
    call([*enter(cluster, host, "munge"), "/usr/sbin/munged", *files])
    if host == "ctl":
        _start_controller(cluster, inside)
    else:
        call([*inside, "slurmd", "-N", host])
        listens = [*inside, "bash", "-c", "</dev/tcp/127.0.0.1/6818"]
        log = cluster.folder(host) / "srv" / "log" / "slurmd.log"
        wait_until(lambda: succeeds(listens), f"slurmd on {host}", log)


def _start_controller(cluster: Cluster, inside: list[str]) -> None:
    srv = cluster.folder("ctl") / "srv"
    if not (srv / "mysql").exists():
        accounts = ["--skip-test-db", "--auth-root-authentication-method=normal", "--skip-name-resolve"]
        call([*inside, "mariadb-install-db", *MARIADB, *accounts])
    call([*inside, "install", "-d", "-o", "mysql", "-m", "755", "/run/mysqld"])
    socket = "--socket=/run/mysqld/mysqld.sock"
    daemon = ["mariadbd", *MARIADB, socket, "--log-error=/srv/log/mariadb.log"]
    call([*inside, "setsid", "--fork", "sh", "-c", 'exec "$@" >/dev/null 2>&1 </dev/null', "sh", *daemon])
    sql = [*inside, "mariadb", "--no-defaults", socket, "-e", "select 1"]
    wait_until(lambda: succeeds(sql), "MariaDB on ctl", srv / "log" / "mariadb.log")
    call([*inside, "slurmdbd"])
    accounting = [*inside, "sacctmgr", "-n", "list", "cluster", "format=cluster"]
    wait_until(lambda: succeeds(accounting), "slurmdbd on ctl", srv / "log" / "slurmdbd.log")
    if "testbed" not in call(accounting):
        call([*inside, "sacctmgr", "-i", "add", "cluster", "testbed"])
    call([*inside, "slurmctld"])
    wait_until(lambda: succeeds([*inside, "scontrol", "ping"]), "slurmctld on ctl", srv / "log" / "slurmctld.log")


def wait_working(cluster: Cluster, hosts: tuple[str, ...]) -> None:
    """Return when Slurm would run jobs on these nodes; a node that it marked as broken is given another chance."""
    inside, names = enter(cluster, "ctl"), ",".join(hosts)

    def ready() -> bool:
        states = set(call([*inside, "sinfo", "-h", "-N", "-n", names, "-o", "%T"]).split())
        if states <= WORKING:
            return True
        # Refused for a node that is on its way up by itself, which is as good.
        succeeds([*inside, "scontrol", "update", f"nodename={names}", "state=resume"])
        return False

    wait_until(ready, f"Slurm on {names}", cluster.folder("ctl") / "srv" / "log" / "slurmctld.log")
