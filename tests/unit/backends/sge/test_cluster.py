"""The checks of a Grid Engine profile and the rows of its queues, by the output of Grid Engine's programs."""

from __future__ import annotations

import pytest

from orchestrator.backends.batch.queues import Partition
from orchestrator.backends.sge.cluster import fields_of, fits_pe, fits_queue, parse_queues
from orchestrator.cli.render.results import partitions_page

PE = """\
pe_name            mpi
slots              {slots}
user_lists         NONE
allocation_rule    {rule}
control_slaves     {control}
job_is_first_task  TRUE
"""
INSTANCES = """<?xml version='1.0'?>
<job_info>
  <queue_info>
    <Queue-List><name>main@n1</name><qtype>BIP</qtype><slots_used>0</slots_used><slots_total>8</slots_total></Queue-List>
    <Queue-List>
      <name>main@n2</name>
      <slots_used>3</slots_used>
      <slots_total>16</slots_total>
    </Queue-List>
    <Queue-List><name>main@n3</name><slots_used>0</slots_used><slots_total>8</slots_total><state>au</state></Queue-List>
    <Queue-List><name>old@n3</name><slots_used>0</slots_used><slots_total>8</slots_total><state>d</state></Queue-List>
  </queue_info>
</job_info>
"""
HOSTS = """<?xml version='1.0'?>
<qhost>
 <host name='global'>
   <hostvalue name='mem_total'>-</hostvalue>
 </host>
 <host name='n1'>
   <hostvalue name='num_proc'>8</hostvalue>
   <hostvalue name='mem_total'>4.0G</hostvalue>
 </host>
 <host name='n2'>
   <hostvalue name='mem_total'>8.0G</hostvalue>
 </host>
</qhost>
"""
QUEUES = "qname                 main\nh_rt                  24:00:00,[n1=1:00:00]\nqname   old\nh_rt   INFINITY\n"


def test_the_queues_of_a_cluster() -> None:
    main, old = parse_queues(INSTANCES, HOSTS, QUEUES)
    assert main == Partition("main", False, True, 86400, 3, 1, "8+", "4096+", "", "n1,n2,n3", "queue")
    assert (old.is_up, old.limit, old.idle, old.memory) == (False, None, 0, "")
    lines = partitions_page([main.to_json(), old.to_json()]).splitlines()
    assert lines[0].split()[:3] == ["QUEUE", "IDLE", "NODES"]
    assert lines[1].split()[:6] == ["main", "1", "of", "3", "8+", "4096+"]
    assert lines[2].startswith("old (down)")


@pytest.mark.parametrize(
    ("wanted", "level"), [(None, "ok"), ("main", "ok"), ("main@n1", "ok"), ("m*", "ok"), ("nope", "fail")]
)
def test_a_queue(wanted: str | None, level: str) -> None:
    assert fits_queue(wanted, ["main", "old"]).level == level


@pytest.mark.parametrize(
    ("rule", "slots", "control", "nodes", "each", "level", "words"),
    [
        ("4", "999", "TRUE", 3, 4, "ok", "mpi gives 4 slots on each host"),
        ("1", "999", "TRUE", 3, 1, "ok", "mpi gives 1 slots on each host"),
        ("$pe_slots", "999", "FALSE", 1, 8, "ok", "mpi gives all slots on one host"),
        ("$pe_slots", "999", "TRUE", 3, 4, "fail", "mpi has allocation_rule $pe_slots"),
        ("2", "999", "TRUE", 3, 4, "fail", "mpi has allocation_rule 2"),
        ("$round_robin", "999", "TRUE", 3, 4, "warn", "one host may provide the slots of two nodes"),
        ("4", "8", "TRUE", 3, 4, "fail", "mpi has 8 slots, but the profile requests 12"),
        ("4", "999", "FALSE", 3, 4, "fail", "mpi has control_slaves FALSE"),
    ],
)
def test_a_parallel_environment(
    rule: str, slots: str, control: str, nodes: int, each: int, level: str, words: str
) -> None:
    fields = fields_of(PE.format(rule=rule, slots=slots, control=control))
    found = fits_pe("mpi", fields, nodes, each)
    assert found.level == level
    assert words in found.value
    assert bool(found.hint) == (level != "ok")
