"""What is taken from a kernel's log: the driver's own lines on GPUs, and only new ones."""

from __future__ import annotations

from orchestrator.node.system.kernel_log import gpu_faults_in, newest_gpu_faults

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def record(seconds: float, text: str) -> str:
    return f"4,1234,{int(seconds * 1e6)},-;{text}\n SUBSYSTEM=pci\n"


def test_only_the_drivers_new_lines_are_told() -> None:
    log = [
        record(10, "NVRM: Xid (PCI:0000:3b:00): 13, pid=7, Graphics Exception"),
        record(990, "usb 1-1: new high-speed USB device"),
        record(1000, XID),
        "no record at all",
        record(1001, "python3[77]: segfault at 0"),
    ]
    assert gpu_faults_in(log, 1005) == [XID]
    assert gpu_faults_in(log, 5000) == []


def test_the_newest_lines_are_told_where_there_are_many() -> None:
    log = [record(1000 + number, f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=1") for number in range(50)]
    assert [line.split(" ")[3] for line in gpu_faults_in(log, 1050)] == ["45,", "46,", "47,", "48,", "49,"]


def test_this_machines_own_log_can_be_read_or_is_left_alone() -> None:
    assert all(line.startswith("NVRM: ") for line in newest_gpu_faults())
