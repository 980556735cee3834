"""`python -m tests.testbed`: a real cluster on this machine, from the command line. See docs/testbed.md."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from tests.testbed import cluster as whole
from tests.testbed import hosts, images, network, sites, sshd
from tests.testbed.layout import Cluster, ClusterError, standing, state_folder
from tests.testbed.machine import ENVIRONMENT, install, obstacle


def main() -> int:
    options = parser().parse_args()
    try:
        if options.verb == "install":
            if not (options.where_possible and obstacle()):
                install(more=options.all)
                images.base()
        elif options.verb == "up":
            started = whole.up(
                Cluster(
                    state_folder(),
                    options.nodes,
                    options.cpus,
                    options.gpus,
                    options.slurm,
                    options.docker,
                    options.sge,
                    options.site,
                )
            )
            print(f"up: {' '.join(started.hosts)}")
        elif options.verb == "down":
            whole.down()
        else:
            there = standing()
            if there is None:
                raise ClusterError("no testbed is up: `python -m tests.testbed up`")
            act(there, options)
    except ClusterError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1
    return 0


def act(cluster: Cluster, options: argparse.Namespace) -> None:
    """The verbs of a testbed that stands."""
    if options.verb == "env":
        print(f"export TESTBED={shlex.quote(str(cluster.root))} TESTBED_HOSTS={shlex.quote(' '.join(cluster.hosts))}")
        return
    user, _, host = options.host.rpartition("@")
    cluster.known(host)
    if options.verb == "on":
        command = options.command[1:] if options.command[:1] == ["--"] else options.command
        argv = [*hosts.enter(cluster, host, user or "root"), *(command or ["bash", "-l"])]
        os.execvpe(argv[0], argv, ENVIRONMENT | {"TERM": os.environ.get("TERM", "dumb")})  # noqa: S606
    elif options.verb == "cut":
        network.cut(host)
    elif options.verb == "heal":
        network.heal(host)
    elif options.verb == "crash":
        hosts.crash(cluster, host)
    elif options.verb == "boot":
        whole.boot(cluster, host)
    elif options.verb == "gate":
        network.gate(host, cluster.known(options.door))
    elif options.verb == "ungate":
        network.ungate(host)
    elif options.verb == "rekey":
        (sshd.give_key if options.back else sshd.change_key)(cluster, host)
        sshd.restart(cluster, host)
    elif options.verb == "sshd":
        sshd.configure(cluster, host, options.option)
        sshd.restart(cluster, host)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m tests.testbed", description="A real cluster on this machine.")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    packages = verbs.add_parser("install", help="install the Debian packages that are missing, and make the base image")
    packages.add_argument("--where-possible", action="store_true", help="do nothing where there can be no testbed")
    packages.add_argument("--all", action="store_true", help="Grid Engine's packages too, which `make test-all` needs")
    up = verbs.add_parser("up", help="bring the testbed up, in $TESTBED or /tmp/orch-testbed")
    up.add_argument("--nodes", type=int, default=3, help="n1 .. nN beside ctl (default 3)")
    up.add_argument("--cpus", type=int, default=8, help="that Slurm sees on a node (default 8)")
    up.add_argument("--gpus", type=int, default=4, help="that Slurm sees on a node (default 4)")
    up.add_argument("--slurm", action=argparse.BooleanOptionalAction, default=True, help="Slurm with accounting")
    up.add_argument("--docker", action=argparse.BooleanOptionalAction, default=False, help="a Docker daemon a node")
    up.add_argument("--sge", action=argparse.BooleanOptionalAction, default=False, help="Grid Engine")
    up.add_argument("--site", choices=sites.SITES, default="", help="make n1 .. nN hosts of a site that differs")
    verbs.add_parser("down", help="take it down, finished or not")
    verbs.add_parser("env", help="shell variables: where it is, its hosts")
    on = verbs.add_parser("on", help="run a command on a host, or a shell")
    on.add_argument("host", metavar="[USER@]HOST")
    on.add_argument("command", nargs=argparse.REMAINDER)
    for verb, text in (
        ("cut", "unplug the host's network cable"),
        ("heal", "plug it in again"),
        ("crash", "power off: every process dies at once, no last packet leaves"),
        ("boot", "power on again, with the daemons of before"),
        ("ungate", "open the host's port 22 to everybody again"),
    ):
        verbs.add_parser(verb, help=text).add_argument("host")
    gate = verbs.add_parser("gate", help="let the host's port 22 answer one other host alone")
    gate.add_argument("host")
    gate.add_argument("door")
    rekey = verbs.add_parser("rekey", help="give the host an SSH key that nobody knows")
    rekey.add_argument("host")
    rekey.add_argument("--back", action="store_true", help="give it the known one again")
    daemon = verbs.add_parser("sshd", help="start the host's sshd anew with lines of sshd_config, or with none")
    daemon.add_argument("host")
    daemon.add_argument("option", nargs="*", metavar="'OPTION VALUE'")
    return top


if __name__ == "__main__":
    sys.exit(main())
