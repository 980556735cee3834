"""Reads and parses the kernel's counters of this machine and of single processes, from files below a root folder."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from orchestrator.node.system.cgroup import memory_limits, memory_used
from orchestrator.node.system.kernel_files import read_bytes
from orchestrator.protocol.reading import names_in

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SECTOR = 512  # bytes per sector in /proc/diskstats, whatever the disk's own sector size is
WORD = 4  # bytes of a word, the unit of InfiniBand's counters


@dataclass(frozen=True)
class Counters:
    """A node's counters since its boot, in bytes and seconds, and its memory in use, in bytes."""

    cpu: float
    memory: float
    memory_total: float
    read: float
    written: float
    received: float
    sent: float


@dataclass(frozen=True)
class Usage:
    """A process's counters since its start, and its present memory. The process's pid and `started` together
    identify it.
    """

    started: int
    cpu: float
    memory: float
    read: float
    written: float


class CounterReader:
    """Reads a node's counters. Only disks and network cards that exist when the reader is created are counted."""

    def __init__(self, root: str = "") -> None:
        self.root = root
        self.disks = frozenset(name.encode() for name in names_in(f"{root}/sys/block") if self._is_real("block", name))
        cards = [name for name in names_in(f"{root}/sys/class/net") if name != "lo"]
        # Virtual network cards send their packets through these.
        real = [name for name in cards if self._is_real("class/net", name)]
        self.cards = frozenset(name.encode() for name in real or cards)
        base = f"{root}/sys/class/infiniband"
        self.limits = memory_limits(f"{root}/proc/self/cgroup", f"{root}/sys/fs/cgroup")
        self.ports = [
            f"{base}/{card}/ports/{port}/counters"
            for card in names_in(base)
            for port in names_in(f"{base}/{card}/ports")
        ]

    def _is_real(self, kind: str, name: str) -> bool:
        return os.path.exists(f"{self.root}/sys/{kind}/{name}/device")

    def read(self) -> Counters:
        """Return the node's present counters."""
        memory, total = memory_of(read_bytes(f"{self.root}/proc/meminfo"))
        # The limit that is most exhausted counts: the limit of the job's cgroup, or the machine's memory.
        for folder, limit in self.limits:
            if limit < total and (used := memory_used(folder)) / limit > memory / total:
                memory, total = float(used), float(limit)
        read, written = disk_bytes(read_bytes(f"{self.root}/proc/diskstats"), self.disks)
        received, sent = network_bytes(read_bytes(f"{self.root}/proc/net/dev"), self.cards)
        for port in self.ports:
            received += WORD * _number(read_bytes(f"{port}/port_rcv_data"))
            sent += WORD * _number(read_bytes(f"{port}/port_xmit_data"))
        return Counters(cpu_seconds(read_bytes(f"{self.root}/proc/stat")), memory, total, read, written, received, sent)


def cpu_seconds(stat: bytes) -> float:
    """Return the total busy seconds of all cores, from /proc/stat."""
    fields = [int(each) for each in stat.partition(b"\n")[0].split()[1:9]]
    if len(fields) < 5:
        return 0.0
    return (sum(fields) - fields[3] - fields[4]) / TICKS  # without the time of idleness and of waiting for a disk


def memory_of(meminfo: bytes) -> tuple[float, float]:
    """Return (bytes in use, total bytes) from /proc/meminfo."""
    found = {}
    for line in meminfo.split(b"\n")[:8]:
        name, _, value = line.partition(b":")
        if name in (b"MemTotal", b"MemAvailable", b"MemFree"):
            found[name] = 1024.0 * _number(value)
    total = found.get(b"MemTotal", 0.0)
    return total - found.get(b"MemAvailable", found.get(b"MemFree", 0.0)), total


def disk_bytes(diskstats: bytes, disks: frozenset[bytes]) -> tuple[float, float]:
    """Return the bytes (read, written) of these disks, from /proc/diskstats. The lines of partitions are skipped."""
    read = written = 0
    for line in diskstats.split(b"\n"):
        fields = line.split()
        if len(fields) >= 10 and fields[2] in disks:
            read, written = read + int(fields[5]), written + int(fields[9])
    return float(SECTOR * read), float(SECTOR * written)


def network_bytes(dev: bytes, cards: frozenset[bytes]) -> tuple[float, float]:
    """Return the bytes (received, sent) by these network cards, from /proc/net/dev."""
    received = sent = 0
    for line in dev.split(b"\n"):
        name, _, rest = line.partition(b":")
        fields = rest.split()
        if name.strip() in cards and len(fields) >= 9:
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return float(received), float(sent)


def usage_of(pid: int, root: str = "") -> Usage | None:
    """Return a process's usage; None if the process has ended. Only the process's own user can read its I/O
    counters.
    """
    folder = f"{root}/proc/{pid}"
    fields = read_bytes(f"{folder}/stat").rpartition(b")")[2].split()
    if len(fields) < 22 or fields[0] in b"ZX":
        return None
    cpu = (int(fields[11]) + int(fields[12])) / TICKS
    pages = read_bytes(f"{folder}/statm").split()
    own = int(pages[1]) - int(pages[2]) if len(pages) > 2 else int(fields[21])
    read = written = 0
    for line in read_bytes(f"{folder}/io").split(b"\n"):
        if line.startswith(b"read_bytes:"):
            read = _number(line[11:])
        elif line.startswith(b"write_bytes:"):
            written = _number(line[12:])
    return Usage(int(fields[19]), cpu, float(PAGE * max(0, own)), float(read), float(written))


def _number(text: bytes) -> int:
    with contextlib.suppress(ValueError, IndexError):
        return int(text.split()[0])
    return 0
