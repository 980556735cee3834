"""What crosses machines survives the crossing, and every node derives the same numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol.task import Container, Input, Mount, NodeTask, Program

words = st.text(max_size=12)
counts = st.integers(0, 2**31)
several = st.lists(words, max_size=4).map(tuple)
tasks = st.builds(
    NodeTask,
    run_id=words,
    node_rank=counts,
    nnodes=counts,
    hosts=several,
    nproc=st.none() | counts,
    run_dir=words,
    code_dir=words,
    program=st.builds(Program, kind=st.sampled_from(["module", "script", "command"]), target=words, args=several),
    launcher=words,
    backend=words,
    python=words,
    leader_addrs=several,
    port_range=st.tuples(counts, counts),
    attempt=counts,
    env=st.dictionaries(words, words, max_size=3),
    container=st.none()
    | st.builds(
        Container,
        runtime=words,
        image=words,
        mounts=st.lists(st.builds(Mount, source=words, target=words, read_only=st.booleans()), max_size=2).map(tuple),
        cap_add=several,
    ),
    setup=several,
    interface=st.none() | words,
    warm_imports=several,
    inputs=st.lists(st.builds(Input, name=words, source=words, sha256=words), max_size=2).map(tuple),
    retry=st.dictionaries(words, st.none() | counts, max_size=3),
    time_limit=st.none() | counts,
    join_timeout=st.floats(0, 1e6),
    grace=st.floats(0, 1e6),
    credentials=words,
    secrets=st.dictionaries(words, words, max_size=2),
)


def task(**values: object) -> NodeTask:
    return replace(
        NodeTask("r-1", 1, 3, ("n1", "n2", "n3"), 4, "/run", "/code", Program("script", "train.py"), "fork", "gloo",
                 "python3", ("10.0.0.1",), (20000, 20100)),
        **values,
    )  # fmt: skip


@given(tasks)
def test_a_task_survives_json(sent: NodeTask) -> None:
    assert NodeTask.from_json(json.loads(json.dumps(sent.to_json()))) == sent


@pytest.mark.parametrize("version", [0, 1, None, "2"])
def test_a_task_of_another_format_is_refused(version: object) -> None:
    with pytest.raises(ValueError, match="this agent reads 2"):
        NodeTask.from_json({**task().to_json(), "version": version})


@pytest.mark.parametrize(
    ("addrs", "only"), [(("127.0.0.1",), True), (("127.0.0.1", "10.0.0.1"), False), (("localhost",), False)]
)
def test_a_gang_on_one_machine_listens_on_loopback_only(addrs: tuple[str, ...], only: bool) -> None:
    assert task(leader_addrs=addrs).only_loopback is only


def test_unknown_leader_addresses_do_not_mean_loopback() -> None:
    """Slurm's plan knows no address beforehand."""
    assert task(leader_addrs=()).only_loopback is False
