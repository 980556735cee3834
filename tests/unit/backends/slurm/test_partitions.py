"""Partitions as sinfo prints them, and whether a profile fits."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.backends.slurm.partitions import Partition, cores_per_gpu, fits, parse_sinfo
from orchestrator.backends.slurm.settings import settings_of
from orchestrator.cli.render.results import partitions_page
from tests.unit.profiles import profile_of

SINFO = """\
main*|up|infinite|4|3/1|8|4000|gpu:4|n[1-4]
big|up|2-00:00:00|10|0/10|64+|256000+|(null)
big|up|2-00:00:00|2|0/2|128|512000|gpu:a100:8
short|up|10:00|4|3/1|8|4000|gpu:4
old|down|1:00:00|4|0/0|8|4000|(null)
sinfo: error: something
"""


def test_sinfo() -> None:
    rows = parse_sinfo(SINFO)
    assert rows[0] == Partition("main", True, True, None, 4, 1, "8", "4000", "gpu:4", "n[1-4]")
    assert [row.name for row in rows] == ["main", "big", "big", "short", "old"]
    assert [row.limit for row in rows] == [None, 172_800, 172_800, 600, 3600]
    assert (rows[1].cores, rows[1].gres, rows[4].is_up) == ("64+", "", False)


@pytest.mark.parametrize(
    ("profile", "level", "words"),
    [
        ({"nodes": 4}, "ok", "main: 4 nodes, 1 idle"),
        ({"nodes": 12, "partition": "big", "time": 3600}, "ok", "big: 12 nodes, 12 idle"),
        ({"nodes": 13, "partition": "big"}, "fail", "big has 12 nodes, the profile asks for 13"),
        ({"nodes": 11, "spares": 2, "partition": "big"}, "fail", "big has 12 nodes, the profile asks for 13"),
        ({"nodes": 1, "partition": "short", "time": 3600}, "fail", "short gives 10 min, the profile asks for 60"),
        ({"nodes": 1, "partition": "nope"}, "fail", "there is no partition nope"),
        ({"nodes": 1, "partition": "old"}, "warn", "partition old is down, so jobs wait"),
        ({"nodes": 3, "cpus_per_task": 99}, "fail", "main: n[1-4] have 8 cores, 99 asked"),
        ({"nodes": 1, "mem": 5000 << 20}, "fail", "main: n[1-4] have 4000 MiB of memory, 5000 asked"),
        ({"nodes": 1, "gpus_per_node": 8}, "fail", "main: n[1-4] have 4 GPUs, 8 asked"),
        ({"nodes": 3, "gpus_per_node": 8, "partition": "big"}, "fail", "big: 10 nodes have 0 GPUs, 8 asked"),
        ({"nodes": 2, "cpus_per_task": 50, "partition": "short,big"}, "ok", "big: 12 nodes, 12 idle"),
        ({"nodes": 2, "cpus_per_task": 100, "partition": "big"}, "ok", "big: 12 nodes, 12 idle"),
    ],
)
def test_whether_a_profile_fits(profile: dict[str, Any], level: str, words: str) -> None:
    found = fits(settings_of(profile_of("slurm", **profile)), parse_sinfo(SINFO))
    assert found[:2] == (level, words)
    assert bool(found[2]) == (level != "ok")


def test_the_page_of_partitions() -> None:
    lines = partitions_page([row.to_json() for row in parse_sinfo(SINFO)]).splitlines()
    assert lines[0].split() == ["PARTITION", "IDLE", "NODES", "CORES", "MEMORY", "GRES", "TIME", "LIMIT"]
    assert lines[1].split() == ["main", "(default)", "1", "of", "4", "8", "4000", "MiB", "gpu:4", "none"]
    assert lines[5].startswith("old (down)")


@pytest.mark.parametrize(
    ("profile", "shown", "cores"),
    [
        ({}, "", 2),  # the default partition's 8 cores and 4 GPUs
        ({"partition": "big"}, "", 16),  # of its nodes with GPUs
        ({"partition": "short,big"}, "", 2),  # a job may come to either
        ({"partition": "big"}, "PartitionName=big MaxCPUsPerNode=48 JobDefaults=(null)", 6),
        ({"partition": "big"}, "PartitionName=big MaxCPUsPerNode=UNLIMITED JobDefaults=DefCpuPerGPU=12", 12),
        ({"partition": "old"}, "", None),
        ({"partition": "nope"}, "", None),
    ],
)
def test_a_gpus_share_of_a_nodes_cores(profile: dict[str, Any], shown: str, cores: int | None) -> None:
    assert cores_per_gpu(settings_of(profile_of("slurm", **profile)), parse_sinfo(SINFO), shown) == cores


def test_what_sinfo_says_of_sockets_is_no_number_of_gpus() -> None:
    rows = parse_sinfo("main*|up|infinite|4|3/1|96|4000|gpu:h100:4(S:0-1),gpu:t4:4(S:1),nvme:2")
    assert cores_per_gpu(settings_of(profile_of("slurm")), rows, "") == 12
