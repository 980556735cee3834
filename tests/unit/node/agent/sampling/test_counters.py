"""The kernel's counters: of a machine laid out in a folder, and of this very process."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.node.agent.sampling.counters import CounterReader, cpu_seconds, memory_of, usage_of
from orchestrator.node.agent.sampling.trees import on_host, trees_below

TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
MEMINFO = b"MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nBuffers: 1 kB\n"
DISKSTATS = """\
 259       0 nvme0n1 10 0 100 5 20 0 200 5 0 5 5
 259       1 nvme0n1p1 10 0 100 5 20 0 200 5 0 5 5
 253       0 dm-0 10 0 100 5 20 0 200 5 0 5 5
   7       0 loop0 10 0 9999 5 0 0 0 0 0 0 0
"""
NET = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 5000 1 0 0 0 0 0 0 5000 1 0 0 0 0 0 0
  eth0: 1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0
docker0:1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0
"""


def machine(root: Path, *, cards: tuple[str, ...] = ("eth0",)) -> Path:
    """Lay out a machine: a disk in parts, a network card below a bridge, one core that has worked for 3 s."""
    files = {
        "proc/stat": f"cpu  {2 * TICKS} 0 {TICKS} {90 * TICKS} {5 * TICKS} 0 0 0 {TICKS} 0\ncpu0 1 2 3 4\n",
        "proc/meminfo": MEMINFO.decode(),
        "proc/diskstats": DISKSTATS,
        "proc/net/dev": NET,
        "proc/self/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/memory.max": str(200 << 10),
        "sys/fs/cgroup/job/memory.current": str(190 << 10),
        "sys/fs/cgroup/job/memory.stat": "anon 1\ninactive_file 0\n",
        "sys/fs/cgroup/job/step/memory.max": "max\n",
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "25\n",
        "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "50\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    folders = ["sys/block/nvme0n1/device", "sys/block/dm-0", "sys/block/loop0", "sys/class/net/docker0"]
    for name in [*folders, "sys/class/net/lo", *(f"sys/class/net/{card}/device" for card in cards)]:
        (root / name).mkdir(parents=True)
    return root


def test_a_machines_counters_count_nothing_twice(tmp_path: Path) -> None:
    found = CounterReader(str(machine(tmp_path))).read()
    assert found.cpu == 3.0
    assert (found.read, found.written) == (100 * 512, 200 * 512)
    assert (found.received, found.sent) == (1000 + 4 * 25, 2000 + 4 * 50)


def test_where_no_card_is_real_all_but_loopback_count(tmp_path: Path) -> None:
    found = CounterReader(str(machine(tmp_path, cards=()))).read()
    assert found.received == 1000 + 4 * 25  # docker0 alone is there


def test_the_cgroups_memory_counts_where_it_is_fuller_than_the_machine(tmp_path: Path) -> None:
    root = machine(tmp_path)
    assert CounterReader(str(root)).read().memory_total == 200 << 10
    (root / "sys/fs/cgroup/job/memory.stat").write_text(f"anon 1\ninactive_file {100 << 10}\n")
    found = CounterReader(str(root)).read()
    assert (found.memory, found.memory_total) == (600 << 10, 1000 << 10)


def test_files_that_are_missing_or_say_something_else_are_no_error(tmp_path: Path) -> None:
    assert CounterReader(str(tmp_path)).read().cpu == 0.0
    assert cpu_seconds(b"intr 1\n") == 0.0
    assert memory_of(b"MemTotal: what\n") == (0.0, 0.0)


def test_a_process_has_used_what_the_kernel_says() -> None:
    begun = usage_of(os.getpid())
    assert begun is not None
    sum(number * number for number in range(2_000_000))
    now = usage_of(os.getpid())
    assert now is not None
    assert now.started == begun.started
    assert now.cpu > begun.cpu
    assert now.memory > 1 << 20
    assert usage_of(1 << 22) is None


def test_a_zombie_uses_nothing_and_a_name_may_hold_anything(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / "7"
    folder.mkdir(parents=True)
    fields = " ".join(["S", "1", *["0"] * 9, str(2 * TICKS), str(TICKS), *["0"] * 6, "77", "0", "5"])
    (folder / "stat").write_text(f"7 (a) b (c) {fields}\n")
    (folder / "statm").write_text("100 50 20 1 0 1 0\n")
    (folder / "io").write_text("rchar: 9\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 1\n")
    found = usage_of(7, str(tmp_path))
    assert found is not None
    assert (found.started, found.cpu, found.memory, found.read, found.written) == (77, 3.0, 30 * PAGE, 4096, 8192)
    (folder / "stat").write_text(f"7 (x) Z {fields[2:]}\n")
    assert usage_of(7, str(tmp_path)) is None


def test_a_ranks_processes_are_its_own_and_all_below() -> None:
    parents = [(10, 1), (11, 10), (12, 11), (20, 1), (21, 20), (30, 1)]
    assert trees_below({0: 10, 1: 20}, parents) == {0: [10, 11, 12], 1: [20, 21]}


def test_a_containers_numbers_are_found_again_by_the_kernels_word() -> None:
    assert on_host({3: os.getpid()}, [os.getpid(), 1 << 22]) == {3: os.getpid()}  # of a process in no other namespace
    assert on_host({3: 1 << 22}, [os.getpid()]) == {}
