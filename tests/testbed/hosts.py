"""Hosts: namespaces that begin with one process and end with it; what they may see, and how to run things on them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from orchestrator.node.system.processes import Process, identify, send_signal, wait_gone
from tests.patience import PATIENCE
from tests.testbed import network
from tests.testbed.layout import PEOPLE, REPO, Cluster, ClusterError
from tests.testbed.machine import ENVIRONMENT

SCRIPT = Path(__file__).with_name("boot.sh")
OWN = ("home", "root", "scratch", "srv", "tmp")  # of every host, kept through a crash
MOUNT_POINTS = ("/scratch", "/shared")  # those that a Debian does not have


def boot(cluster: Cluster, host: str) -> None:
    """Power on: returns when the host's file systems are mounted; no daemon runs yet."""
    if is_up(cluster, host):
        raise ClusterError(f"{host} is on already")
    log = cluster.root / "log" / f"{host}.boot"
    network.plug(host)
    namespaces = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
    files = (cluster.folder(host), cluster.root, cluster.pid_file(host))
    script = ["bash", str(SCRIPT), host, *map(str, files)]
    enter = f"--net=/run/netns/{network.network(host)}"
    # setsid forks, so that nobody who waits for children of ours meets a host
    argv = ["setsid", "--fork", "nsenter", enter, "unshare", *namespaces, "--", *script]
    reader, writer = os.pipe()
    with log.open("w") as errors, os.fdopen(reader) as lines:
        paths = "".join(f"{path}\n" for path in readable())
        subprocess.run(argv, input=paths, text=True, stdout=writer, stderr=errors, env=ENVIRONMENT, check=True)
        os.close(writer)
        answer = lines.readline()
    if answer != "ready\n":
        raise ClusterError(f"{host} did not start: {log.read_text().strip()}")


def crash(cluster: Cluster, host: str) -> None:
    """Power off: the host is silent at once, not a last packet leaves it; then all of its processes are gone."""
    network.remove_cable(host)
    if first := init_of(cluster, host):
        send_signal(first, signal.SIGKILL)
    cluster.pid_file(host).unlink(missing_ok=True)
    end_all(network.network(host))
    network.remove_network(host)


def end_all(name: str) -> None:
    """Kill every process in one of the testbed's network namespaces, until there is none."""
    while found := [process for pid in network.in_network(name) if (process := identify(pid)) is not None]:
        for process in found:
            send_signal(process, signal.SIGKILL)
        if stuck := wait_gone(found, PATIENCE):
            raise ClusterError(f"processes in {name} survive SIGKILL: {', '.join(str(each.pid) for each in stuck)}")


def init_of(cluster: Cluster, host: str) -> Process | None:
    """The host's first process, as the machine sees it; None where the host is off."""
    try:
        process = identify(int(cluster.pid_file(host).read_text()))
        # A record that outlived its host may name a stranger by now: ours is in the host's network.
        if process is None or not os.path.samefile(f"/proc/{process.pid}/ns/net", _network_file(host)):
            return None
    except (OSError, ValueError):
        return None
    return process


def is_up(cluster: Cluster, host: str) -> bool:
    return init_of(cluster, host) is not None


def enter(cluster: Cluster, host: str, user: str = "root", env: Mapping[str, str] | None = None) -> list[str]:
    """The argv prefix that runs a program on the host as that user, in their home, with a login's environment."""
    first = init_of(cluster, cluster.known(host))
    if first is None:
        raise ClusterError(f"{host} is off: `python -m tests.testbed boot {host}`")
    home = {"root": "/root", **{each.name: each.home for each in PEOPLE}}.get(user, "/")
    return [
        *("nsenter", f"--target={first.pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--"),
        *("setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env", "--"),
        *("env", f"--chdir={home}", "--", *(f"{name}={value}" for name, value in (env or {}).items())),
    ]


def readable() -> list[Path]:
    """What the hosts' users must be able to read of folders that each host has of its own: interpreter, sources.

    ClusterError where one of them is closed to ordinary users, or a folder above it that the hosts don't replace.
    """
    roots = {REPO, Path(sys.prefix), Path(sys.base_prefix)} | {Path(entry) for entry in sys.path if entry}
    wanted = sorted({path.resolve() for path in roots if path.exists()})
    outermost = [path for path in wanted if not any(other in path.parents for other in wanted)]
    covered = [path for path in outermost if len(path.parts) > 1 and path.parts[1] in OWN]
    for path in outermost:
        for folder in (path,) if path in covered else (path, *path.parents):
            if not folder.stat().st_mode & 0o001:
                raise ClusterError(f"ordinary users can't read {path}: {folder} is closed to them (chmod o+rx)")
    return covered


def _network_file(host: str) -> Path:
    return Path("/run/netns") / network.network(host)
