"""Facts about a node that are needed before its ranks start: cores, GPUs, addresses, and the route to node 0."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import sys
from dataclasses import replace

from orchestrator.node.system.kernel_files import read_text
from orchestrator.protocol.places.devices import GIVEN, VISIBLE, given, shown
from orchestrator.protocol.reading import names_in
from orchestrator.protocol.task import NodeTask

SIOCGIFADDR = 0x8915
# The names of interfaces that don't connect nodes begin with these prefixes. The syntax is NCCL's.
NOT_BETWEEN_NODES = "^lo,docker,br-,virbr,veth,cni,flannel,cali,tailscale,wg,zt"


def cores() -> int:
    """Return the number of cores that this process may use."""
    if sys.platform == "darwin":
        return os.cpu_count() or 1
    return len(os.sched_getaffinity(0))


def memory() -> int:
    """Return the size of this machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def gpus_of(task: NodeTask) -> int:
    """Return the number of GPUs that this node's ranks may use."""
    from orchestrator.node.system.gpus.devices import gpus

    return gpus({**os.environ, **task.env}) if task.uses_gpus else 0


def with_given_gpus(task: NodeTask) -> NodeTask:
    """Return the task with one more variable, which lists the GPUs of this machine that the ranks may use. If the run
    has reserved GPUs, only these are visible to all its processes, also to set-up lines and to a container's engine.

    If this machine has no GPUs, the task is returned unchanged.
    """
    from orchestrator.node.system.gpus.devices import machine_devices

    if not (devices := machine_devices()):
        return task
    env = {**task.env, **shown(task.reserved)}
    visible = env.get(VISIBLE, os.environ.get(VISIBLE)) if task.uses_gpus else ""
    return replace(task, env={**env, GIVEN: given(visible, devices)})


def nproc_here(task: NodeTask) -> int:
    """Return the number of ranks on this node. If the plan does not set this number, it is the number of GPUs, or of
    cores if there are no GPUs.
    """
    return task.nproc if task.nproc is not None else gpus_of(task) or cores()


def network_here() -> str:
    """Return a text that identifies this process's network. It consists of the machine's boot id and the network
    namespace.
    """
    return f"{read_text('/proc/sys/kernel/random/boot_id').strip()}/{os.stat('/proc/self/ns/net').st_ino}"


def addresses() -> tuple[str, ...]:
    """Return this host's IPv4 addresses, with the loopback address last."""
    found = [addr for _, name in socket.if_nameindex() if (addr := interface_address(name))]
    return tuple(sorted(set(found), key=lambda addr: (addr.startswith("127."), found.index(addr))))


def interface_address(name: str) -> str | None:
    """Return the IPv4 address of a network interface, or None if the interface does not exist or has no address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            packed = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:  # the interface has no IPv4 address
            return None
    return socket.inet_ntoa(packed[20:24])


def interface_problem(names: str | None, inet6: str = "/proc/net/if_inet6") -> str:
    """Return why gloo and NCCL can't use the named interfaces (`eth0` or `ib0,ib1`), or "" if they can."""
    own = [name for _, name in socket.if_nameindex()]
    for name in filter(None, (names or "").split(",")):
        if interface_address(name) is not None:
            continue
        if name not in own:
            return f"it has no network interface {name}, which the profile names; its interfaces: {', '.join(own)}"
        if name not in _with_ipv6(inet6):
            return f"its network interface {name}, which the profile names, has no address"
    return ""


def _with_ipv6(path: str) -> set[str]:
    """Return the names of the network interfaces that have an IPv6 address; empty if the kernel has no IPv6."""
    return {line.split()[-1] for line in read_text(path).split("\n") if line}


def _source_address(destination: str) -> str | None:
    """Return the local address from which packets to a destination would be sent. No packet is sent."""
    family = socket.AF_INET6 if ":" in destination else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _can_bind(address: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def listening_addresses(names: tuple[str, ...], interface: str | None) -> tuple[str, ...]:
    """Return the addresses at which this host must listen if other hosts use these names and addresses to reach it.

    These are the local addresses to which the names resolve. If `interface` is given, only the interface's address and
    loopback addresses are returned. A name may resolve to a loopback address on this host (Debian's 127.0.1.1) and to
    another address on other hosts. In this case all addresses of this host are returned.
    """
    found: list[str] = []
    for name in names:
        with contextlib.suppress(OSError, UnicodeError):  # only other hosts can resolve this name
            found += [str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    own = [address for address in dict.fromkeys(found) if _can_bind(address)]
    outer = [address for address in own if not _is_loopback(address)]
    if own and not outer and all(map(_is_loopback, names)):
        return tuple(own)
    outer = outer or [address for address in addresses() if not _is_loopback(address)]
    chosen = interface_address(interface) if interface else None
    inner = [address for address in own if _is_loopback(address)]
    return (*(each for each in outer if chosen not in outer or each == chosen), *inner)


def lacks_tls() -> str:
    """Return a phrase that names what this Python lacks for TLS 1.3, or "" if it supports TLS 1.3."""
    try:
        import ssl
    except ImportError:
        return "its Python has no ssl module"
    return "" if ssl.HAS_TLSv1_3 else f"its Python has {ssl.OPENSSL_VERSION}, without TLS 1.3"


def network_environment(master_addr: str, interface: str | None) -> dict[str, str]:
    """Return GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME if gloo or NCCL would choose a wrong interface, else {}.

    Gloo uses the address to which the host's name resolves. This is wrong if the name resolves to a loopback address,
    to no address, or to a network that does not lead to the master (horovod #310, NVIDIA/nccl #286). NCCL may use any
    interface, even a container bridge or a tunnel that reaches no other node.
    """
    if interface is not None:
        return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    source = _source_address(master_addr)
    found = [name for _, name in socket.if_nameindex() if source and interface_address(name) == source]
    if not found:
        return {}
    if not _gloo_finds(master_addr, source):
        return {"GLOO_SOCKET_IFNAME": found[0], "NCCL_SOCKET_IFNAME": f"={found[0]}"}
    from orchestrator.node.system.gpus.devices import gpus

    if not gpus() or _is_loopback(master_addr):
        return {}
    return {"NCCL_SOCKET_IFNAME": NOT_BETWEEN_NODES if _has_infiniband() else f"={found[0]}"}


def _gloo_finds(master_addr: str, source: str | None) -> bool:
    """Return whether gloo would choose the right address without GLOO_SOCKET_IFNAME."""
    try:
        guess = socket.gethostbyname(socket.gethostname())
    except OSError:
        guess = ""
    return guess == source or (master_addr.startswith("127.") and guess != "" and _can_bind(guess))


def _has_infiniband(folder: str = "/sys/class/infiniband") -> bool:
    """Return whether this node has InfiniBand adapters. If it has, NCCL uses sockets only to connect the ranks at
    first.
    """
    return bool(names_in(folder))
