"""Cables: every host has a network of its own, plugged into a switch that stands in a namespace of its own.

So no packet of a test can leave the machine, and the machine's firewall can't drop ours.
"""

from __future__ import annotations

from pathlib import Path

from tests.testbed.layout import address
from tests.testbed.machine import call, succeeds

SWITCH = "orch-switch"


def network(host: str) -> str:
    """The name of the host's network namespace."""
    return f"orch-{host}"


def build_switch(nodes: int) -> None:
    _make_room_for_neighbours(16 * nodes)
    call(["ip", "netns", "add", SWITCH])
    call(["ip", "-n", SWITCH, "link", "add", "br0", "type", "bridge"])
    call(["ip", "-n", SWITCH, "link", "set", "br0", "up"])


def _make_room_for_neighbours(count: int) -> None:
    """Have the kernel keep that many: all networks of the machine share a table of 1,024, unless it is told otherwise.

    Where it is full, connections time out. It stays so until the machine starts again, and costs nothing.
    """
    for name in ("gc_thresh3", "gc_thresh2"):
        limit = Path("/proc/sys/net/ipv4/neigh/default", name)
        if int(limit.read_text()) < count:
            limit.write_text(str(count))


def plug(host: str) -> None:
    """Give the host a network: eth0 with its address, and the cable to the switch."""
    name, cable = network(host), f"v-{host}"
    call(["ip", "netns", "add", name])
    call(["ip", "link", "add", cable, "netns", SWITCH, "type", "veth", "peer", "name", "eth0", "netns", name])
    call(["ip", "-n", SWITCH, "link", "set", cable, "master", "br0", "up"])
    # The same card after every boot: with another one the neighbours' caches would be wrong for seconds.
    steps = (
        f"link set eth0 address {_card(host)}\naddr add {address(host)}/16 brd + dev eth0\n"
        "link set eth0 up\nlink set lo up\n"
    )
    call(["ip", "-n", name, "-batch", "-"], text=steps)


def _card(host: str) -> str:
    """The hardware address of the host's eth0."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address(host).split("."))


def cut(host: str) -> None:
    """Unplug the host's cable."""
    call(["ip", "-n", SWITCH, "link", "set", f"v-{host}", "down"])


def heal(host: str) -> None:
    """Plug it in again; returns when the host and the others can find each other.

    A host that looked for another one during the cut would say "No route to host" for a second longer.
    """
    call(["ip", "-n", SWITCH, "link", "set", f"v-{host}", "up"])
    others = [name.removeprefix("orch-") for name in networks() if name not in {SWITCH, network(host)}]
    for one, other in (pair for each in others for pair in ((each, host), (host, each))):
        known = ["neigh", "change", address(other), "lladdr", _card(other), "nud", "stale", "dev", "eth0"]
        succeeds(["ip", "-n", network(one), *known])  # fails if it did not look for the other


def remove_cable(host: str) -> None:
    """Take the cable away, so that a dying host's last packets reach nobody; fine where it is gone."""
    succeeds(["ip", "-n", SWITCH, "link", "del", f"v-{host}"])


def remove_network(host: str) -> None:
    """Fine where it is gone."""
    succeeds(["ip", "netns", "del", network(host)])


def remove_switch() -> None:
    """Fine where it is gone."""
    succeeds(["ip", "netns", "del", SWITCH])


def in_network(name: str) -> list[int]:
    """Every process in the namespace, whichever host's it was; none where it is gone."""
    return [int(pid) for pid in call(["ip", "netns", "pids", name]).split()] if name in networks() else []


def networks() -> list[str]:
    """The network namespaces of a testbed that are on the machine, by name."""
    names = [line.split()[0] for line in call(["ip", "netns", "list"]).splitlines() if line]
    return [name for name in names if name.startswith("orch-")]


def gate(host: str, door: str) -> None:
    """From now on the host's port 22 answers `door` alone, as behind a login node; other ports stay open."""
    ungate(host)
    match = ["-p", "tcp", "--dport", "22", "!", "-i", "lo", "!", "-s", address(door)]
    call(["nsenter", f"--net=/run/netns/{network(host)}", "iptables", "-w", "-A", "INPUT", *match, "-j", "DROP"])


def ignore(host: str, other: str, longer_than: int = 0, after: int = 0) -> None:
    """From now on packets of `other` that are longer than so many bytes don't reach the host.

    Of connections to `other` it loses only what comes `after` so many bytes of each; older ones stay as they are.
    """
    match = ["-s", address(other), "-m", "length", "--length", f"{longer_than + 1}:65535"]
    if after:
        limit = ["--connbytes", f"{after}:", "--connbytes-mode", "bytes", "--connbytes-dir", "reply"]
        match += ["-m", "connbytes", *limit]
    call(["nsenter", f"--net=/run/netns/{network(host)}", "iptables", "-w", "-A", "INPUT", *match, "-j", "DROP"])


def ungate(host: str) -> None:
    """Open the host's firewall to everybody again."""
    call(["nsenter", f"--net=/run/netns/{network(host)}", "iptables", "-w", "-F", "INPUT"])
