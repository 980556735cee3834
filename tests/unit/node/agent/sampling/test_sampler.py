"""From counters to samples, and into a file of bounded size."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.node.agent.sampling.counters import Counters, Usage
from orchestrator.node.agent.sampling.idle import IdleWatch
from orchestrator.node.agent.sampling.ring_file import SampleFile
from orchestrator.node.agent.sampling.sampler import Moment, Sampler
from orchestrator.protocol.samples import GpuSample, RankSample, Sample
from orchestrator.runs.files.samples import read_samples
from orchestrator.runs.store import RunDir
from tests import nvml
from tests.patience import PATIENCE

START = Counters(10.0, 100.0, 1000.0, 5000.0, 0.0, 0.0, 0.0)


class Counters:
    """A machine and its processes, whose counters are what a test says."""

    def __init__(self) -> None:
        self.machine, self.processes = START, dict[int, Usage]()
        self.gpus: tuple[GpuSample, ...] = ()
        self.sampler = Sampler(self, 4, lambda: self.gpus, self.processes.get)  # type: ignore[arg-type]

    def read(self) -> Counters:
        return self.machine

    def take(self, now: float, *pids: int, waited: float | None = None) -> Sample | None:
        heartbeat = {"phase": "train", "step": 7, "waited": waited}
        return self.sampler.take(Moment(now, 1000.0 + now), {0: list(pids)}, {0: heartbeat})


def test_how_long_steps_take_is_told_by_the_heartbeats_own_clock() -> None:
    sampler, seconds = Counters().sampler, list[float | None]()
    beats = [
        {"phase": "start"}, {"step": 10, "time": 5.0}, {"step": 10, "time": 5.0}, {"step": 14, "time": 7.0},
        {"step": 15, "time": 10.0}, {"step": 8, "time": 11.0}, {"step": 9, "time": 11.5}, {"step": 10, "time": "x"},
    ]  # fmt: skip
    for at, beat in enumerate(beats):
        sample = sampler.take(Moment(2.0 * at, 2.0 * at), {0: []}, {0: beat})
        seconds += [rank.step_seconds for rank in sample.ranks] if sample is not None else []
    assert seconds == [None, None, 0.5, 3.0, None, 0.5, None]


def test_a_sample_is_what_was_used_between_two_looks() -> None:
    counters = Counters()
    counters.processes[1] = Usage(5, 1.0, 100.0, 0.0, 0.0)
    assert counters.take(0.0, 1, waited=1.0) is None
    counters.machine = replace(START, cpu=14.0, read=6000.0)
    counters.processes[1] = Usage(5, 2.0, 100.0, 400.0, 0.0)
    counters.processes[2] = Usage(6, 50.0, 30.0, 0.0, 0.0)  # it counts from now on
    sample = counters.take(2.0, 1, 2, waited=2.5)
    assert sample is not None
    assert (sample.seconds, sample.cpu, sample.read, sample.memory_total) == (2.0, 2.0, 500.0, 1000.0)
    assert sample.ranks == (RankSample(0, 0.5, 130.0, 200.0, 0.0, "train", 7, 0.75),)
    counters.processes[1] = Usage(9, 0.5, 100.0, 0.0, 0.0)  # another process with its number
    counters.processes[2] = Usage(6, 54.0, 30.0, 0.0, 0.0)
    sample = counters.take(4.0, 1, 2)
    assert sample is not None
    assert (sample.ranks[0].cpu, sample.ranks[0].waited) == (2.0, None)


def test_energy_is_power_over_time_and_unknown_without_a_gpu_that_tells() -> None:
    counters = Counters()
    counters.take(0.0)
    assert (sample := counters.take(2.0)) is not None
    assert sample.joules is None
    counters.gpus = (GpuSample(0, power=100.0), GpuSample(1, power=50.0), GpuSample(2))
    assert (sample := counters.take(4.0)) is not None
    assert sample.joules == 300.0


# -- the file


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=60), st.integers(200, 4000))
def test_a_file_keeps_the_newest_samples_within_its_bounds(ranks: list[int], half: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        run.node(0).mkdir(parents=True)
        file = SampleFile(f"{run.node(0)}/samples.jsonl", half)
        written = [
            Sample(time=float(number), seconds=2.0, ranks=tuple(map(RankSample, range(count))))
            for number, count in enumerate(ranks)
        ]
        for sample in written:
            file.append(sample)
        kept = [sample for node in read_samples(run) for sample in node.samples]
        assert kept == written[len(written) - len(kept) :]
        longest = max((len(json.dumps(each.to_json())) for each in written), default=0)
        sizes = [path.stat().st_size for path in run.node(0).glob("samples.jsonl*")]
        assert all(size <= max(half, longest) for size in sizes)
        assert not written or kept[-1:] == written[-1:]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200))
def test_a_crash_costs_one_line_at_most(cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        run.node(0).mkdir(parents=True)
        path = run.node(0) / "samples.jsonl"
        file = SampleFile(str(path))
        for number in range(5):
            file.append(Sample(time=float(number), seconds=2.0, cpu=1.0))
        last = len(path.read_bytes().splitlines(keepends=True)[-1])
        path.write_bytes(path.read_bytes()[: -min(cut, last)])
        SampleFile(str(path)).append(Sample(time=9.0, seconds=2.0))
        times = [sample.time for sample in read_samples(run)[0].samples]
        assert times in ([0, 1, 2, 3, 9], [0, 1, 2, 3, 4, 9])  # the last line may have lost its end alone


def test_only_the_end_of_a_long_file_is_read_where_that_is_enough(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.node(3).mkdir(parents=True)
    file = SampleFile(f"{run.node(3)}/samples.jsonl", 2000)
    for number in range(60):
        file.append(Sample(time=float(number), seconds=2.0))
    (node,) = read_samples(run, tail=300)
    assert node.node == 3
    assert node.samples[-1].time == 59.0
    assert 3 < len(node.samples) < 12
    assert len(read_samples(run)[0].samples) > 40


# -- idle


def feed(watch: IdleWatch, seconds: float, percent: float, *, gpu: bool = True) -> bool:
    """Let so much time pass at so much use; return what is said in the end."""
    said = False
    rank = RankSample(0, cpu=0.0 if gpu else percent / 100)
    for _ in range(int(seconds / 2)):
        gpus = (GpuSample(0, use=percent),) if gpu else ()
        said = watch.add(Sample(seconds=2.0, ranks=(rank,), gpus=gpus))
    return said


def test_a_node_is_idle_once_each_minute_was_for_as_long_as_the_job_says() -> None:
    watch = IdleWatch(gpu=5.0, after=600.0)
    assert not feed(watch, 3600, 90)
    assert not feed(watch, 596, 3)
    assert feed(watch, 10, 3)
    assert watch.what == "GPU 3 %"
    assert not feed(watch, 60, 30)


def test_one_busy_moment_ends_no_idle_hour() -> None:
    watch = IdleWatch(gpu=5.0, after=600.0)
    feed(watch, 570, 0)
    feed(watch, 2, 100)
    assert feed(watch, 60, 0)


def test_without_gpus_that_tell_the_cpu_counts_where_the_job_has_a_limit_for_it() -> None:
    assert not feed(IdleWatch(gpu=5.0, after=60.0), 120, 0, gpu=False)
    assert feed(IdleWatch(gpu=5.0, cpu=10.0, after=60.0), 120, 1, gpu=False)
    assert not feed(IdleWatch(gpu=5.0, cpu=10.0, after=60.0), 120, 20, gpu=False)


def test_a_node_without_ranks_is_not_idle_and_begins_anew() -> None:
    watch = IdleWatch(cpu=10.0, after=60.0)
    assert feed(watch, 120, 1, gpu=False)
    assert not watch.add(Sample(seconds=2.0))
    assert watch.seconds == 0.0


# -- GPUs


def test_the_gpus_of_the_ranks_are_measured_through_the_library(tmp_path: Path) -> None:
    card = nvml.card(1, "utilization 97", "power 312000", "throttle 64", "volatile 2")
    stub = nvml.describe(tmp_path / "state", nvml.card(0), card, nvml.card(2))
    names = ["MIG-1", nvml.uuid(0), nvml.uuid(1)]
    program = (
        "from orchestrator.node.agent.sampling.gpus import gpu_samples; import dataclasses, json; "
        f"print(json.dumps([dataclasses.asdict(each) for each in gpu_samples({names})]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=stub.environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    idle, busy = (GpuSample(**each) for each in json.loads(done.stdout))
    assert (idle.use, idle.power, idle.throttled, idle.ecc) == (0, 76.0, "", 0)
    assert (busy.index, busy.use, busy.power, busy.throttled, busy.ecc) == (1, 97, 312.0, "hardware thermal", 2)
    assert (busy.memory_total, busy.temperature, busy.clock) == (139 * nvml.GIB, 31, 345)
