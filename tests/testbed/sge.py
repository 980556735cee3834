"""Grid Engine: sge_qmaster on ctl, sge_execd on every node, one queue, and two parallel environments.

Debian's programs look for all their files below /var/lib/gridengine, which is the machine's. Each host has a folder of
/shared in its place, so testbeds beside each other don't meet. The daemons' own files are in /srv.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.testbed.hosts import enter
from tests.testbed.layout import Cluster
from tests.testbed.machine import call, succeeds, wait_until

DEBIANS, OURS, SPOOL = Path("/var/lib/gridengine"), "/shared/gridengine", "/srv/sge"
TEMPLATES = "/usr/share/gridengine"
BOOTSTRAP = f"""\
Version 6.2
admin_user none
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {DEBIANS}/default/common;{SPOOL}/qmaster
binary_path /usr/sbin
qmaster_spool_dir {SPOOL}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
CONFIGURATION = {
    "execd_spool_dir": f"{SPOOL}/execd",
    "load_report_time": "00:00:02",
    "max_unheard": "00:00:20",
    "reschedule_unknown": "00:00:05",  # how long a host has to be lost until its jobs begin again elsewhere
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false sharelog=00:00:00",
    "execd_params": "ENABLE_ADDGRP_KILL=true",
}
# By `mpi` a job may get several slots of a host, by `each` one. The job's script counts as its first task.
PE = """\
pe_name {name}
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule {rule}
control_slaves TRUE
job_is_first_task TRUE
urgency_slots min
accounting_summary TRUE
qsort_args NONE
"""
SCHEDULER = {"schedule_interval": "0:0:2", "flush_submit_sec": "1", "flush_finish_sec": "1", "schedd_job_info": "true"}
LIMIT = 1024  # of open files: execd closes every descriptor up to the limit before each job


def configure(cluster: Cluster) -> None:
    """Write the files that all hosts share."""
    root = cluster.root / OURS[1:]
    shutil.copytree(DEBIANS, root, symlinks=True, ignore=shutil.ignore_patterns("default"))
    common = root / "default" / "common"
    common.mkdir(parents=True)
    (common / "bootstrap").write_text(BOOTSTRAP)
    (common / "act_qmaster").write_text("ctl\n")


def start(cluster: Cluster, host: str) -> None:
    """Start the host's daemon; on ctl, returns when it answers and knows all hosts."""
    inside = enter(cluster, host, env={"SGE_ROOT": str(DEBIANS), "SGE_CELL": "default"})
    call([*inside, "mount", "--bind", OURS, DEBIANS])
    if host == "ctl":
        _start_master(cluster, inside)
    else:
        call([*inside, "mkdir", "-p", f"{SPOOL}/execd"])


def _start_master(cluster: Cluster, inside: list[str]) -> None:
    is_new = not (cluster.folder("ctl") / "srv" / "sge").exists()
    if is_new:
        _initialise(inside)
    _daemon(inside, "sge_qmaster")
    answers = [*inside, "qconf", "-sss"]
    wait_until(
        lambda: succeeds(answers), "sge_qmaster on ctl", cluster.folder("ctl") / "srv" / "sge" / "qmaster" / "messages"
    )
    if is_new:
        _furnish(cluster, inside)


def _initialise(inside: list[str]) -> None:
    call([*inside, "mkdir", "-p", f"{SPOOL}/qmaster/job_scripts"])
    library = "/usr/lib/gridengine"
    call([*inside, f"{library}/spoolinit", "classic", "libspoolc", f"{DEBIANS}/default/common;{SPOOL}/qmaster", "init"])
    lines = (line.split(None, 1) for line in Path(f"{TEMPLATES}/default-configuration").read_text().splitlines())
    given = {words[0]: words[1].strip() for words in lines if len(words) == 2 and not words[0].startswith("#")}
    text = "".join(f"{name} {value}\n" for name, value in {**given, **CONFIGURATION}.items())
    _write(inside, "/srv/sge/configuration", text)
    call([*inside, f"{library}/spooldefaults", "configuration", "/srv/sge/configuration"])
    call([*inside, f"{library}/spooldefaults", "complexes", f"{TEMPLATES}/util/resources/centry"])
    call([*inside, f"{library}/spooldefaults", "usersets", f"{TEMPLATES}/util/resources/usersets"])
    call([*inside, f"{library}/spooldefaults", "managers", "root"])


def _furnish(cluster: Cluster, inside: list[str]) -> None:
    nodes = ",".join(cluster.workers)
    call([*inside, "qconf", "-ah", nodes])
    call([*inside, "qconf", "-as", f"ctl,{nodes}"])
    _write(inside, "/srv/sge/hosts", f"group_name @nodes\nhostlist {' '.join(cluster.workers)}\n")
    call([*inside, "qconf", "-Ahgrp", "/srv/sge/hosts"])
    for name, rule in (("mpi", "$round_robin"), ("each", "1")):
        _write(inside, "/srv/sge/pe", PE.format(name=name, rule=rule))
        call([*inside, "qconf", "-Ap", "/srv/sge/pe"])
    queue = call([*inside, "qconf", "-sq"])
    changed = {"qname": "main", "hostlist": "@nodes", "slots": str(cluster.cpus), "pe_list": "mpi each",
               "notify": "00:00:20", "rerun": "TRUE", "shell": "/bin/sh", "load_thresholds": "NONE"}  # fmt: skip
    _write(inside, "/srv/sge/queue", _changed(queue, changed))
    call([*inside, "qconf", "-Aq", "/srv/sge/queue"])
    _write(inside, "/srv/sge/scheduler", _changed(call([*inside, "qconf", "-ssconf"]), SCHEDULER))
    call([*inside, "qconf", "-Msconf", "/srv/sge/scheduler"])


def _changed(text: str, values: dict[str, str]) -> str:
    """The lines of `NAME VALUE` with other values."""
    lines = (line.split(None, 1) for line in text.replace("\\\n", "").splitlines() if line.strip())
    return "".join(f"{name} {values.get(name, value)}\n" for name, value in lines)


def _write(inside: list[str], path: str, text: str) -> None:
    call([*inside, "sh", "-c", 'cat >"$1"', "sh", path], text=text)


def _daemon(inside: list[str], name: str) -> None:
    """Start a daemon as a service manager would: with few open files, and with nothing of this process."""
    call([*inside, "sh", "-c", f'ulimit -n {LIMIT} && exec "$@" >/dev/null 2>&1 </dev/null', "sh", name])


def wait_working(cluster: Cluster, hosts: tuple[str, ...]) -> None:
    """Start the daemons of these nodes, which need ctl's, and return when Grid Engine would run jobs on all of them."""
    for host in hosts:
        inside = enter(cluster, host)
        if not succeeds([*inside, "bash", "-c", "</dev/tcp/127.0.0.1/6445"]):
            _daemon(inside, "sge_execd")
    inside = enter(cluster, "ctl")

    def ready() -> bool:
        lines = call([*inside, "qstat", "-f"]).splitlines()
        states = {words[0].partition("@")[2]: words[5:] for line in lines if "@" in line and (words := line.split())}
        return all(states.get(host) == [] for host in hosts)

    wait_until(
        ready, f"Grid Engine on {', '.join(hosts)}", cluster.folder("ctl") / "srv" / "sge" / "qmaster" / "messages"
    )
