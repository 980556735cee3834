"""What is said of a run's samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from orchestrator.protocol.samples import GpuSample, RankSample, Sample
from orchestrator.runs.files.samples import NodeSamples
from orchestrator.runs.findings import FindingKind, findings, in_words, step_seconds, straggler_scores

HOSTS = {0: "n1", 1: "n2"}
GB = 1 << 30


def node(number: int, of: Callable[[int], Sample], count: int = 60, seconds: float = 10.0) -> NodeSamples:
    samples = (replace(of(index), time=1000.0 + index * seconds, seconds=seconds) for index in range(count))
    return NodeSamples(number, tuple(samples))


def lines(*nodes: NodeSamples) -> list[str]:
    return in_words(findings(nodes), HOSTS)


def busy(index: int) -> Sample:
    rank = RankSample(0, cpu=1.0, phase="train", step=10 * index, waited=0.1)
    return Sample(memory=4 * GB, memory_total=16 * GB, ranks=(rank,), gpus=(GpuSample(0, use=95.0),))


def changed(**values: object) -> Callable[[int], Sample]:
    """Return samples of a busy rank and its GPU, of which some values are others."""

    def of(index: int) -> Sample:
        sample = busy(index)
        (rank,), (gpu,) = sample.ranks, sample.gpus
        rank_values = {name[5:]: value for name, value in values.items() if name.startswith("rank_")}
        gpu_values = {name[4:]: value for name, value in values.items() if name.startswith("gpu_")}
        own = {name: value for name, value in values.items() if not name.startswith(("rank_", "gpu_"))}
        return replace(sample, ranks=(replace(rank, **rank_values),), gpus=(replace(gpu, **gpu_values),), **own)  # type: ignore[arg-type]

    return of


def test_nothing_is_said_of_a_run_that_is_busy() -> None:
    assert lines(node(0, busy)) == []


def test_an_idle_gpu_is_told_with_its_reason() -> None:
    assert lines(node(0, changed(gpu_use=4.0, rank_waited=0.9))) == ["rank 0: GPU 4 % for 10 min, waiting for its data"]
    assert lines(node(0, changed(gpu_use=4.0, rank_read=35e6)))[0].endswith("reading 33.4 MiB/s from disk")
    assert lines(node(0, changed(gpu_use=4.0)))[0].endswith("computing on the CPU")
    assert lines(node(0, changed(gpu_use=4.0, rank_cpu=0.01)))[0].endswith("and its CPU is idle too")


def test_an_idle_gpu_counts_only_while_it_should_compute_and_when_it_lasts() -> None:
    assert lines(node(0, changed(gpu_use=4.0, rank_phase="save"))) == []
    assert lines(node(0, changed(gpu_use=4.0), count=29)) == []
    blip = node(0, lambda index: changed(gpu_use=90.0 if index == 40 else 4.0)(index))
    assert lines(blip) == []  # for three minutes only since then


def test_another_attempt_begins_anew() -> None:
    assert lines(node(0, lambda index: changed(gpu_use=4.0, attempt=index // 40)(index))) == []


def test_without_a_gpu_an_idle_cpu_and_a_slow_loader_are_told() -> None:
    def without_gpu(**values: float) -> Callable[[int], Sample]:
        return lambda index: replace(changed(**values)(index), gpus=())

    assert lines(node(0, without_gpu(rank_cpu=0.01))) == ["rank 0: CPU 1 % for 10 min"]
    assert lines(node(0, without_gpu(rank_waited=0.8))) == ["rank 0: waits for its data 80 % of the time, for 10 min"]


def test_memory_that_runs_out_is_of_the_node() -> None:
    assert lines(node(0, busy), node(1, changed(memory=15.52 * GB))) == ["node 1 (n2): no memory left: 97 % used"]


def test_a_gpu_that_is_held_back_or_damaged_is_told() -> None:
    hot = changed(gpu_throttled="thermal", gpu_temperature=91.0)
    assert lines(node(0, hot)) == ["rank 0: GPU 0 is held back (thermal) for 10 min, at 91 C"]
    assert lines(node(0, changed(gpu_ecc=2))) == ["rank 0: GPU 0: 2 memory errors that could not be corrected"]


def ranks_of(number: int, seconds: tuple[float, ...]) -> NodeSamples:
    """Return a node whose ranks take so long for a step."""

    def of(index: int) -> Sample:
        parts = (
            RankSample(number * len(seconds) + place, cpu=1.0, phase="train", step=int(10 * index / each))
            for place, each in enumerate(seconds)
        )
        return Sample(ranks=tuple(parts))

    return node(number, of)


def test_a_rank_whose_steps_take_long_is_a_straggler() -> None:
    nodes = ranks_of(0, (1.0, 1.0)), ranks_of(1, (1.0, 2.0))
    assert step_seconds(nodes[1]) == {2: 1.0, 3: 2.0}
    assert straggler_scores(nodes) == {0: 1.0, 1: 1.0, 2: 1.0, 3: 2.0}
    assert lines(*nodes) == ["rank 3: a step takes 2.0 times as long as on the other ranks"]
    assert straggler_scores([ranks_of(0, (1.0,))]) == {}
    assert straggler_scores([ranks_of(0, (1.0, 2.0))]) == {0: 0.5, 1: 2.0}


def test_what_is_said_of_many_ranks_is_said_once_and_the_worst_comes_first() -> None:
    def of(index: int) -> Sample:
        parts = tuple(RankSample(rank, phase="train") for rank in range(8))
        return Sample(memory=99, memory_total=100, ranks=parts)

    assert lines(node(0, of)) == ["node 0 (n1): no memory left: 99 % used", "ranks 0-7: CPU 0 % for 10 min"]
    assert [each.kind for each in findings([node(0, of)])][:2] == [FindingKind.MEMORY, FindingKind.CPU_IDLE]


def test_more_than_a_few_lines_are_counted() -> None:
    damaged = tuple(GpuSample(number, ecc=1) for number in range(7))
    nodes = [node(0, lambda _: Sample(gpus=damaged))]
    assert len(in_words(findings(nodes), HOSTS, most=None)) == 7
    assert lines(*nodes)[4:] == [
        "node 0 (n1): GPU 4: 1 memory errors that could not be corrected",
        "and 2 more: orch metrics",
    ]
